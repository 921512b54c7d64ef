// Puts the linear kernels of one instruction set into its table.
#pragma once

#include "kernels.h"
#include "linear/quantise.h"
#include "linear/row.h"

#if defined(__AVX512VNNI__)
#include "linear/tile_avx512.h"
#elif defined(__AVX2__)
#include "linear/tile_avx2.h"
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#include "linear/tile_neon.h"
#else
#include "linear/tile_scalar.h"
#endif

namespace fuse {
inline namespace FUSE_ISA {

#if defined(__AVX512VNNI__)
using Tiles = linear::Avx512;
#elif defined(__AVX2__)
using Tiles = linear::Avx2;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
using Tiles = linear::Neon;
#else
using Tiles = linear::Scalar;
#endif

template <Fmt F>
inline void fill_float(Kernels &k) {
  k.tile[int(F)][int(ActType::f32)] = Tiles::float_tile<F>();
  k.row[int(F)] = linear::row_float<F>;
}

template <Fmt F>
inline void fill_int(Kernels &k) {
  k.tile[int(F)][int(ActType::a8)] = Tiles::int_tile<F, ActType::a8>();
  k.tile[int(F)][int(ActType::a16)] = Tiles::int_tile<F, ActType::a16>();
  k.row[int(F)] = linear::row_int<F>;
}

inline void fill_linear(Kernels &k) {
  fill_float<Fmt::f32>(k);
  fill_float<Fmt::f16>(k);
  fill_float<Fmt::bf16>(k);
  fill_int<Fmt::w8>(k);
  fill_int<Fmt::w8g>(k);
  fill_int<Fmt::w4>(k);
  fill_int<Fmt::w4a>(k);
  fill_int<Fmt::w5>(k);
  k.quantise[int(ActType::f32)] = linear::copy_row;
  k.quantise[int(ActType::a8)] = linear::quantise_int<int8_t>;
  k.quantise[int(ActType::a16)] = linear::quantise_int<int16_t>;
  k.quantise_slice[int(ActType::f32)] = linear::copy_slice;
  k.quantise_slice[int(ActType::a8)] = linear::quantise_slice_int<int8_t>;
  k.quantise_slice[int(ActType::a16)] = linear::quantise_slice_int<int16_t>;
}

}  // namespace FUSE_ISA
}  // namespace fuse
