// Balanced assignment on a CPU.
//
// Each of T tokens gets one of N experts, each expert gets ⌊T/N⌋ or ⌈T/N⌉ tokens, and the sum of scores is maximal:
// a transportation problem, whose dual has only N prices. It has three steps:
//   1. dual_solver.h: dual prices, at which demand, smoothed by a falling temperature, is about even; sampled first.
//   2. augmenting_paths.h: every token takes the expert with the highest score - price.
//   3. augmenting_paths.h: surplus tokens move along augmenting paths from full experts to free ones.
// Step 3 finds the optimum up to rounding for any prices; step 1 only reduces its work. Every loop is bounded.
//
// It runs in the caller's thread and keeps no state, so calls may run concurrently. Scratch memory: T·N floats, twice
// as many if all tokens are nearly indifferent (rows padded to whole vectors), 36·N² floats for sample and graph, and
// five numbers per token. The same scores give the same result. A processor with other vector units rounds sums
// differently, so that tokens may swap experts that are equally good up to rounding.

#include "augmenting_paths.h"
#include "dual_solver.h"
#include "scores.h"

namespace {

constexpr int SAMPLE = 32;  // tokens per expert
constexpr int GLANCE = 16;  // tokens per expert, to judge prices of an earlier step
constexpr int SMALLEST_SAMPLE = 512;
constexpr double GOLDEN = 0.6180339887498949;  // its multiples are spread evenly over [0, 1), without a period

enum Outcome { DONE = 0, NO_MEMORY = 1, UNSUITED = 2 };

// Finds prices for `all` scores, which are packed from `rows`.
void find_prices(const float* rows, const Scores& all, const float* start, DualSolver& solver) {
  const int experts = all.experts();
  const int64_t tokens = all.tokens();
  const auto sample_of = [&](int64_t size) {
    return Scores(rows, tokens, experts, size, static_cast<int64_t>(GOLDEN * static_cast<double>(tokens)));
  };
  const int64_t size = std::max(SAMPLE * experts, SMALLEST_SAMPLE);
  const Scores sample = sample_of(2 * size < tokens ? size : 0);
  const Scores& some = sample.tokens() ? sample : all;
  if (start != nullptr) {
    const Scores few = sample_of(std::min<int64_t>(GLANCE * experts, tokens));
    if (solver.resume(few, some, all, start)) return;
  }
  solver.begin(some, all);
}

// Writes prices minus their mean, in units of the scores.
void write_prices(const Floats* prices, int experts, double spread, float* price_out) {
  double mean = 0;
  for (int e = 0; e < experts; ++e) mean += at(prices, e) / static_cast<double>(experts);
  for (int e = 0; e < experts; ++e) price_out[e] = static_cast<float>((at(prices, e) - mean) * spread);
}

Outcome assign(const float* rows, int64_t tokens, int experts, const float* start, int64_t* expert_out,
               float* price_out) {
  const Scores scores(rows, tokens, experts, tokens, 1);
  if (!scores.usable()) return UNSUITED;
  const float unit = scores.spread() > 0 ? static_cast<float>(1 / scores.spread()) : 1.f;
  DualSolver solver(experts, unit);
  find_prices(rows, scores, start, solver);
  // A choice is uncertain if two experts are within a temperature of each other.
  AugmentingPaths search(rows, scores, unit, solver.prices(), solver.temperature());
  if (!search.run()) return UNSUITED;
  std::copy(search.experts(), search.experts() + tokens, expert_out);
  write_prices(search.centre(), experts, scores.spread(), price_out);
  return DONE;
}

}  // namespace

// scores_TN: T rows of N scores. start_N: N initial prices, or null. expert_T and price_N: outputs, the expert of each
// token and the price of each expert. Returns
//   0 when done;
//   1 if memory is short;
//   2 if scores are not finite, or too large or too small for float32 sums, or if T or N is out of range.
extern "C" __attribute__((visibility("default"))) int mtmoe_priced_assignment(const float* scores_TN, int64_t tokens,
                                                                              int64_t experts, const float* start_N,
                                                                              int64_t* expert_T, float* price_N) {
  if (tokens < 0 || tokens > INT32_MAX || experts < 1 || experts > INT16_MAX) return UNSUITED;
  std::fill(price_N, price_N + experts, 0.f);
  if (tokens == 0) return DONE;
  try {
    return assign(scores_TN, tokens, static_cast<int>(experts), start_N, expert_T, price_N);
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}
