// Matrix tiles of the processor (AMX): eight registers of up to 16 rows of 64 bytes, which hold nothing between calls.
#pragma once

#include "simd.h"

namespace fuse {
inline namespace FUSE_ISA {

// The shapes of the eight tiles on this thread while an object lives: tiles 0-3 are 16 rows of 16 sums, tiles 4 and 5
// rows of A (16 of `depth` bytes), tiles 6 and 7 of B (`depth` / 4 of 64 bytes).
class MatrixTiles {
 public:
  explicit MatrixTiles(int depth) {
    alignas(64) Shapes shapes;
    for (int i = 0; i < 8; i++) {
      shapes.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? depth : 64);
      shapes.rows[i] = static_cast<uint8_t>(i < 6 ? 16 : depth / 4);
    }
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~MatrixTiles() { asm volatile("tilerelease"); }
  MatrixTiles(const MatrixTiles &) = delete;
  MatrixTiles &operator=(const MatrixTiles &) = delete;

 private:
  struct Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
};

// The compiler's own functions (GCC 12) do not tell that they read memory, so that stores before them may be lost.
template <int T>
FUSE_INLINE void tile_load(const void *rows, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(T) : "memory");
}
template <int T>
FUSE_INLINE void tile_store(void *rows, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(T) : "memory");
}
template <int T>
FUSE_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
// C += A B over quads of bytes; those of B are signed.
template <int C, int A, int B, bool Signed>
FUSE_INLINE void tile_dot_int8() {
  if constexpr (Signed) asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  else asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// C += A B over pairs of bfloat16, in float32.
template <int C, int A, int B>
FUSE_INLINE void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace FUSE_ISA
}  // namespace fuse
