// Checks an instruction set against the scalar one: `check NAME`; without a name says which set is chosen here.
#include "check.h"

int main(int count, char **arguments) {
  if (count < 2) {
    std::puts(fuse::find_kernels("")->name);
    return 0;
  }
  const fuse::Kernels *tested = fuse::find_kernels(arguments[1]);
  if (!tested) {
    std::printf("This machine cannot run the %s kernels.\n", arguments[1]);
    return 1;
  }
  const check::Sets sets{*fuse::find_kernels("scalar"), *tested};
  const int failed = check::linear(sets) + check::vectors(sets) + check::attention(sets);
  return failed > 0;
}
