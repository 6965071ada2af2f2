// Step 1: dual prices, by Newton's method on the smoothed dual at falling temperatures. See assignment.cpp.
//
// A token that pays p_e for expert e chooses the highest score - price. At the optimal prices all experts have equal
// demand. With an entropy term, choices become softmaxes at a temperature, and demand is smooth. The matrix of Newton's
// method is computed from a part of the tokens and of each
// token's demand, and the system is solved by conjugate gradients. Demand itself, which determines the solution, is
// exact. The method ends early: moving the remaining surplus tokens costs less than another step.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "scores.h"

namespace {

// Temperatures and prices are in units of the mean over tokens of highest - lowest score. A level is one temperature.
constexpr float WARMEST = 0.25f;      // temperature of the first level
constexpr float COOLING = 0.25f;      // ratio of the next level's temperature to this one's
constexpr int FEWEST_LEVELS = 3;      // down to a temperature of 0.016
constexpr int MOST_LEVELS = 8;
constexpr float WAVERING = 0.3f;      // fraction of demand not for the token's best expert: above it, one more level
constexpr int MOST_STEPS = 6;         // of Newton's method on one level
constexpr float LONGEST_STEP = 4.f;   // in temperatures: limit of a price's step, since smooth demand is a local model
constexpr float UNEVEN = 0.5f;        // of the surplus of hard choices at the best prices: below it, the level ends
// Newton's system. Its matrix, the slope, is the derivative of demand by the prices.
constexpr float RIDGE = 1e-3f;        // of a share, on the diagonal: solvable where no token wavers between two experts
constexpr int MOST_ROUNDS = 30;       // of conjugate gradients
constexpr float SOLVED = 0.01f;       // norm of the residual over that of the excess demand: below it, they end
constexpr float SMALL_SHARE = 0.02f;  // of a token's demand: smaller ones do not count in the slope
constexpr int SLOPE_TOKENS = 256;     // minimum number of tokens for the slope
constexpr int SLOPE_PER_EXPERT = 4;   // minimum number of tokens per expert for the slope
constexpr int SLOPE_STRIDE = 16;      // at most this stride of token blocks for the slope
// Initial prices of an earlier step, judged by the fraction of surplus tokens.
constexpr float FARTHEST = 1e3f;      // distance from the mean price: above it, the prices are not used
constexpr float LOST = 0.5f;          // of a few tokens: above it, the prices are not used
constexpr float SHUNNED = 1e-5f;      // an expert's demand over share: below it, the prices are not used
constexpr float NEAR = 0.12f;         // of a few tokens: below it, the sample is skipped, which would not help
constexpr float UNSOLVED = 0.15f;     // of all tokens, at the end: above it, the solver starts from scratch
constexpr int SLOPE_PARTS = 4;        // factor of the slope's tokens: near the end, a better slope pays
constexpr float PER_E = 1.44269504f;  // log2(e): powers of 2 are cheaper than those of e in the softmax

// 2^x for x <= 0, with an error below 1e-4; at least 2^-60, so that no number is denormal.
INLINE void exp2(Floats& x) {
  constexpr float to_integer = 12582912.f;  // 1.5 · 2^23: adding it rounds, and leaves the integer in the low bits
  x = x < -60.f ? Floats{} - 60.f : x;
  const Floats rounded = x + to_integer;
  x -= rounded - to_integer;
  const Floats power = (((9.6181291e-3f * x + 5.5504109e-2f) * x + 0.24022651f) * x + 0.69314718f) * x + 1.f;
  x = reinterpret_cast<Floats>(reinterpret_cast<Ints>(power) + (reinterpret_cast<Ints>(rounded) << 23));
}

// The tokens' demand at some prices, and scratch memory to compute it.
struct Demand {
  explicit Demand(int experts)
      : total(experts),
        slope(static_cast<size_t>(experts) * vectors_for(experts)),
        sums(experts),
        shares(experts),
        marked(experts / 32 + 1),
        who(experts),
        weights(experts) {}

  int slope_parts = 1;       // factor of the number of tokens for the slope
  std::vector<float> total;  // per expert, in tokens
  Array<Floats> slope;       // (a, b): sum over tokens of (share of expert a) · (share of expert b), where they count
  float wavering = 1;        // fraction of the demand that is not for the token's best expert

  Array<Floats> sums, shares;
  Array<Ints> marked;
  std::vector<int> who;
  std::vector<float> weights;
};

// Adds one token to the slope. Bits of `marked` select the shares that count, a few at low temperatures.
INLINE void add_slope(Demand& demand, int lane, int experts, float weight) {
  const size_t row = static_cast<size_t>(vectors_for(experts)) * LANES;
  float* const slope = reinterpret_cast<float*>(demand.slope.begin());
  int count = 0;
  for (int first = 0; first < experts; first += 32)
    for (uint32_t bits = static_cast<uint32_t>(demand.marked[first / 32][lane]); bits; bits &= bits - 1) {
      demand.who[count] = first + __builtin_ctz(bits);
      demand.weights[count] = demand.shares[demand.who[count]][lane];
      ++count;
    }
  for (int i = 0; i < count; ++i) {
    const float factor = weight * demand.weights[i];
    for (int j = 0; j < count; ++j) slope[demand.who[i] * row + demand.who[j]] += factor * demand.weights[j];
  }
}

// Computes demand. Each token's shares are the softmax over experts of (values · unit - prices), to the base of 2.
void add_up(const Scores& scores, float unit, const float* prices, Demand& demand) {
  const int experts = scores.experts();
  const int64_t slope_tokens = demand.slope_parts * std::max(SLOPE_TOKENS, SLOPE_PER_EXPERT * experts);
  const int64_t stride = std::max<int64_t>(1, std::min<int64_t>(SLOPE_STRIDE, scores.tokens() / slope_tokens));
  const float weight = static_cast<float>(scores.blocks()) / static_cast<float>((scores.blocks() - 1) / stride + 1);
  Floats* const shares = demand.shares.begin();
  Floats* const sums = demand.sums.begin();
  demand.sums.fill(Floats{});
  demand.slope.fill(Floats{});
  Floats favourites = {};
  const Floats* value = scores.values();
  for (int64_t b = 0; b < scores.blocks(); ++b, value += experts) {
    Floats high = value[0] * unit - prices[0], sum = {}, scale = {};
    for (int e = 1; e < experts; ++e) {
      const Floats worth = value[e] * unit - prices[e];
      high = worth > high ? worth : high;
    }
    for (int e = 0; e < experts; ++e) {
      Floats share = value[e] * unit - prices[e] - high;
      exp2(share);
      shares[e] = share;
      sum += share;
    }
    const int lanes = scores.lanes(b);
    for (int l = 0; l < lanes; ++l) scale[l] = 1.f;
    scale /= sum;
    favourites += scale;
    for (int e = 0; e < experts; ++e) {
      shares[e] *= scale;
      sums[e] += shares[e];
    }
    if (b % stride) continue;
    demand.marked.fill(Ints{});
    for (int e = 0; e < experts; ++e)
      demand.marked[e / 32] |= (shares[e] > SMALL_SHARE) & static_cast<int32_t>(1u << e % 32);
    for (int l = 0; l < lanes; ++l) add_slope(demand, l, experts, weight);
  }
  float favoured = 0;
  for (int l = 0; l < LANES; ++l) favoured += favourites[l];
  demand.wavering = std::max(0.f, 1 - favoured / static_cast<float>(scores.tokens()));
  for (int e = 0; e < experts; ++e) {
    demand.total[e] = 0;
    for (int l = 0; l < LANES; ++l) demand.total[e] += sums[e][l];
  }
}

float dot(const Floats* a, const Floats* b, int width) {
  Floats products = {};
  for (int v = 0; v < width; ++v) products += a[v] * b[v];
  float sum = 0;
  for (int l = 0; l < LANES; ++l) sum += products[l];
  return sum;
}

// Newton's step: solves (diagonal - slope) · step = excess by conjugate gradients. Demand that the slope omits stays in
// the diagonal, so that the step is rather too short than too long.
void solve(const Demand& demand, const std::vector<float>& excess, float share, std::vector<float>& step) {
  const int experts = static_cast<int>(excess.size()), width = vectors_for(experts);
  std::vector<float> diagonal(experts), scaling(experts), rest(excess), image(experts);
  Array<Floats> direction(width, Floats{} + 1.f);
  for (int e = 0; e < experts; ++e) {
    const Floats* row = &demand.slope[static_cast<size_t>(e) * width];
    diagonal[e] = std::max(demand.total[e], dot(row, direction.begin(), width)) + RIDGE * share;
    scaling[e] = 1 / std::max(diagonal[e] - at(row, e), RIDGE * share);
  }
  std::fill(step.begin(), step.end(), 0.f);
  float length = 0, target = 0;
  for (int round = 0; round < MOST_ROUNDS; ++round) {
    float norm = 0, scaled_norm = 0, curvature = 0;
    for (int e = 0; e < experts; ++e) {
      norm += rest[e] * rest[e];
      scaled_norm += rest[e] * rest[e] * scaling[e];
    }
    if (round == 0) target = SOLVED * SOLVED * norm;
    if (!(norm > target)) return;
    for (int e = 0; e < experts; ++e) {
      const float before = round == 0 ? 0.f : scaled_norm / length * at(direction.begin(), e);
      set(direction.begin(), e, scaling[e] * rest[e] + before);
    }
    for (int e = 0; e < experts; ++e) {
      const float own = at(direction.begin(), e);
      image[e] = diagonal[e] * own - dot(&demand.slope[static_cast<size_t>(e) * width], direction.begin(), width);
      curvature += own * image[e];
    }
    if (!(curvature > 0)) return;
    for (int e = 0; e < experts; ++e) {
      step[e] += scaled_norm / curvature * at(direction.begin(), e);
      rest[e] -= scaled_norm / curvature * image[e];
    }
    length = scaled_norm;
  }
}

class DualSolver {
 public:
  // unit: factor of the scores that makes their mean spread 1.
  DualSolver(int experts, float unit)
      : unit_(unit), prices_(experts), excess_(experts), step_(experts), demand_(experts) {}
  const std::vector<float>& prices() const { return prices_; }
  float temperature() const { return temperature_; }

  // Solves from the mean scores, through all temperatures; first with some of the scores.
  void begin(const Scores& some, const Scores& all) {
    demand_.slope_parts = 1;
    take_means(some);
    cool(some, 0);
    if (&some != &all) settle(all);
  }

  // Solves from prices of an earlier step, in units of the scores. Returns false if they are too far from the solution
  // for these scores, judged by a few of them; then call `begin`.
  bool resume(const Scores& few, const Scores& some, const Scores& all, const float* start) {
    const int level = FEWEST_LEVELS - 1;
    temperature_ = temperature_of(level);
    if (!take(start)) return false;
    const float surplus = look(few) / static_cast<float>(few.tokens());
    if (surplus > LOST || shuns()) return false;
    demand_.slope_parts = SLOPE_PARTS;
    if (&some != &all && surplus > NEAR) cool(some, level);
    return cool(all, level) < UNSOLVED * static_cast<float>(all.tokens());
  }

 private:
  static float temperature_of(int level) { return WARMEST * std::pow(COOLING, static_cast<float>(level)); }

  // Lowers the temperature until most tokens have a clear choice. Returns the result of `settle`.
  float cool(const Scores& scores, int level) {
    for (;; ++level) {
      temperature_ = temperature_of(level);
      const float surplus = settle(scores);
      if (level >= MOST_LEVELS - 1 || (level >= FEWEST_LEVELS - 1 && demand_.wavering < WAVERING)) return surplus;
    }
  }

  // Newton's method at one temperature. Returns the number of surplus tokens before its last step.
  float settle(const Scores& scores) {
    float surplus = 0;
    for (int i = 0; i < MOST_STEPS; ++i) {
      surplus = look(scores);
      step();
      // Hard choices of tokens with spread demand make some surplus even at perfect prices; its expected size:
      const float doubtful = std::sqrt(demand_.wavering * share_) * static_cast<float>(prices_.size());
      if (surplus < 1 + UNEVEN * doubtful) break;
    }
    return surplus;
  }

  // Computes demand at these prices and this temperature. Returns the number of surplus tokens.
  float look(const Scores& scores) {
    const int experts = scores.experts();
    const float factor = PER_E / temperature_;
    share_ = static_cast<float>(scores.tokens()) / static_cast<float>(experts);
    for (int e = 0; e < experts; ++e) step_[e] = factor * prices_[e];
    add_up(scores, factor * unit_, step_.data(), demand_);
    float surplus = 0;
    for (int e = 0; e < experts; ++e) {
      excess_[e] = demand_.total[e] - share_;
      surplus += std::max(0.f, excess_[e]);
    }
    return surplus;
  }

  // Makes a step of Newton's method, after `look`.
  void step() {
    solve(demand_, excess_, share_, step_);
    for (size_t e = 0; e < prices_.size(); ++e)
      prices_[e] += temperature_ * std::min(LONGEST_STEP, std::max(-LONGEST_STEP, step_[e]));
  }

  // Returns whether some expert has hardly any demand: then its price may be arbitrarily far off.
  bool shuns() const {
    return *std::min_element(demand_.total.begin(), demand_.total.end()) < SHUNNED * share_;
  }

  // Returns false if a price is not finite, or too far from the mean.
  bool take(const float* start) {
    double mean = 0;
    for (size_t e = 0; e < prices_.size(); ++e) mean += start[e] / static_cast<double>(prices_.size());
    for (size_t e = 0; e < prices_.size(); ++e) {
      prices_[e] = static_cast<float>((start[e] - mean) * unit_);
      if (!(std::fabs(prices_[e]) < FARTHEST)) return false;  // NaN too
    }
    return true;
  }

  void take_means(const Scores& scores) {
    const int experts = scores.experts();
    demand_.sums.fill(Floats{});
    std::fill(prices_.begin(), prices_.end(), 0.f);
    const Floats* value = scores.values();
    for (int64_t b = 0; b < scores.blocks(); ++b, value += experts)
      for (int e = 0; e < experts; ++e) demand_.sums[e] += value[e];
    const float number = static_cast<float>(scores.blocks() * LANES);
    for (int e = 0; e < experts; ++e)
      for (int l = 0; l < LANES; ++l) prices_[e] += demand_.sums[e][l] / number * unit_;
  }

  float unit_;
  std::vector<float> prices_, excess_, step_;
  float temperature_ = WARMEST;
  float share_ = 0;  // tokens per expert
  Demand demand_;
};

}  // namespace
