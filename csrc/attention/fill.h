#pragma once

#include "attention/blockwise.h"
#include "attention/kv_write.h"
#include "attention/naive.h"
#include "kernels.h"

namespace fuse {
inline namespace FUSE_ISA {

template <KvFmt F>
inline void fill_kv_format(AttentionKernels &k) {
  k.write[int(F)] = kv_write<F>;
  k.write_step[int(F)] = kv_write_step<F>;
  k.naive[int(F)] = attention_naive<F>;
  k.blockwise[int(F)] = attention_blockwise<F>;
}

inline void fill_attention(Kernels &k) {
  fill_kv_format<KvFmt::f32>(k.attention);
  fill_kv_format<KvFmt::f16>(k.attention);
  fill_kv_format<KvFmt::bf16>(k.attention);
  fill_kv_format<KvFmt::i8_token>(k.attention);
  fill_kv_format<KvFmt::i8_token_head>(k.attention);
  fill_kv_format<KvFmt::i8_head>(k.attention);
}

}  // namespace FUSE_ISA
}  // namespace fuse
