"""Errors a user can act on.

Everything a user may cause (a bad file, flag, switch or request) raises a `UserError` whose message is one sentence
that names what is wrong and what to do; the command line prints it and exits with code 2. Broken invariants are
`assert`s.
"""


class UserError(ValueError):
    """Bad input: the message says what is wrong and what to do about it."""


class LoadError(UserError):
    """A model, tokenizer or template that cannot be read or is not understood."""


class PlanError(UserError):
    """A switch, shape or memory request that cannot be met."""


class DoesNotFitError(PlanError):
    """A plan that needs more memory than it was given; the message holds the bytes."""


class RequestError(UserError):
    """A generation request that can never be served."""
