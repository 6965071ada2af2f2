// Scores in the dual solver's layout: one token per SIMD lane.
#pragma once

#include <cmath>

#include "simd.h"

namespace {

constexpr float LARGEST_SCORE = 1e30f;     // sums and products of larger scores could overflow
constexpr double SMALLEST_SPREAD = 1e-30;  // the reciprocal of a smaller spread could overflow

// Scores minus their token's highest, with one token per lane: vector e of block b holds expert e of the tokens from
// LANES·b on.
class Scores {
 public:
  // Takes every `stride`-th token, cyclically, `tokens` in all.
  Scores(const float* rows, int64_t all_tokens, int experts, int64_t tokens, int64_t stride)
      : tokens_(tokens), experts_(experts), values_(blocks() * experts) {
    spread_ = pack(rows, all_tokens, experts, tokens, stride, values_.begin()) / static_cast<double>(tokens);
  }

  int64_t tokens() const { return tokens_; }
  int experts() const { return experts_; }
  int64_t blocks() const { return (tokens_ + LANES - 1) / LANES; }
  const Floats* values() const { return values_.begin(); }
  int lanes(int64_t block) const { return lanes_of(block, tokens_); }

  // The mean over tokens of highest - lowest score: the unit of prices and temperatures.
  double spread() const { return spread_; }
  bool usable() const { return spread_ == 0 || (spread_ >= SMALLEST_SPREAD && spread_ < 2 * LARGEST_SCORE); }

 private:
  static int lanes_of(int64_t block, int64_t tokens) {
    return static_cast<int>(std::min<int64_t>(LANES, tokens - block * LANES));
  }
  static double pack(const float*, int64_t, int, int64_t, int64_t, Floats*);

  int64_t tokens_;
  int experts_;
  Array<Floats> values_;
  double spread_;
};

// Returns the sum of highest - lowest score; NaN if a score is not finite or too large.
double Scores::pack(const float* rows, int64_t all_tokens, int experts, int64_t tokens, int64_t stride,
                        Floats* values) {
  double spread = 0;
  int64_t token = 0;
  Floats odd = {};  // NaN where a score is infinite or NaN
  for (int64_t b = 0; b * LANES < tokens; ++b, values += experts) {
    const int lanes = lanes_of(b, tokens);
    const float* const first = rows + token * experts;
    const float* row[LANES];  // in the last block, lanes without a token repeat the first
    for (int l = 0; l < LANES; ++l) {
      row[l] = l < lanes ? rows + token * experts : first;
      if (l < lanes) token += stride;
      if (token >= all_tokens) token -= all_tokens;
    }
    for (int e = 0; e < experts; ++e)
      for (int l = 0; l < LANES; ++l) values[e][l] = row[l][e];
    Floats high = values[0], low = values[0];
    for (int e = 0; e < experts; ++e) {
      high = values[e] > high ? values[e] : high;
      low = values[e] < low ? values[e] : low;
      odd += values[e] * 0.f;
    }
    for (int e = 0; e < experts; ++e) values[e] -= high;
    for (int l = 0; l < lanes; ++l) {
      spread += static_cast<double>(high[l]) - low[l];
      if (high[l] > LARGEST_SCORE || low[l] < -LARGEST_SCORE) return NAN;
    }
  }
  for (int l = 0; l < LANES; ++l) spread += odd[l];
  return spread;
}

}  // namespace
