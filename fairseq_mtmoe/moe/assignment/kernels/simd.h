// SIMD: vectors of LANES numbers, which fill the processor's registers, and arrays of them. See assignment.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#define INLINE inline __attribute__((always_inline))

namespace {

// The number of floats in one vector register of the target processor: gcc keeps parts of longer vectors in memory,
// which takes four times as long.
#if defined(MTMOE_LANES)
constexpr int LANES = MTMOE_LANES;  // for tests
#elif defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

INLINE float at(const Floats* numbers, int index) { return numbers[index / LANES][index % LANES]; }
INLINE void set(Floats* numbers, int index, float value) { numbers[index / LANES][index % LANES] = value; }
INLINE int vectors_for(int numbers) { return (numbers + LANES - 1) / LANES; }

// An array aligned for every vector unit. Unlike std::vector's, its values are not initialized, which would take as
// long as filling large arrays.
template <class Value>
class Array {
 public:
  explicit Array(size_t size = 0)
      : size_(size), values_(static_cast<Value*>(operator new(size * sizeof(Value), ALIGNMENT))) {}
  Array(size_t size, const Value& value) : Array(size) { fill(value); }
  Array(const Array&) = delete;
  Array& operator=(Array&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(values_, other.values_);
    return *this;
  }
  ~Array() { operator delete(values_, ALIGNMENT); }

  void fill(const Value& value) { std::fill(begin(), end(), value); }
  size_t size() const { return size_; }
  Value* begin() { return values_; }
  Value* end() { return values_ + size_; }
  const Value* begin() const { return values_; }
  Value& operator[](size_t index) { return values_[index]; }
  const Value& operator[](size_t index) const { return values_[index]; }

 private:
  static constexpr std::align_val_t ALIGNMENT{sizeof(Floats)};
  size_t size_;
  Value* values_;
};

}  // namespace
