// Balanced assignment on a CPU: solves what moe/assignment/stepwise.py solves with torch, faster and more exactly.
//
// Each of T tokens gets one of N experts, each expert gets ⌊T/N⌋ or ⌈T/N⌉ tokens, and the sum of scores is to be as high
// as can be: a transportation problem, whose dual has N prices only. Three steps, which moe/README.md explains:
//   1. dual_solver.h: dual prices, at which demand, softened by a falling temperature, is about even; first on a sample.
//   2. augmenting_paths.h: every token takes the expert with the highest score - price.
//   3. augmenting_paths.h: the tokens that are too many move along augmenting paths from full experts to free ones.
// Step 3 finds the optimum but for rounding, whatever the prices are: step 1 only decides how much is left to do.
// Every loop has a bound.
//
// It runs in the caller's thread and keeps nothing between calls, so that calls may run side by side. Scratch memory:
// T·N floats, as many again where all tokens are nearly indifferent (rows padded to whole vectors), 36·N² floats for
// sample and graph, and five numbers per token. The same scores give the same answer; on a processor with other vector
// units, sums are rounded otherwise, and tokens may change places that are equally good but for rounding.

#include "augmenting_paths.h"
#include "dual_solver.h"
#include "scores.h"

namespace {

constexpr int SAMPLE = 32;  // tokens per expert
constexpr int GLANCE = 16;  // as many, to judge prices of an earlier step by
constexpr int SMALLEST_SAMPLE = 512;
constexpr double GOLDEN = 0.6180339887498949;  // its multiples spread over [0, 1) evenly, in step with no sentences

enum Outcome { DONE = 0, NO_MEMORY = 1, UNSUITED = 2 };

// Prices for `all` scores, which are those of `rows`.
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

// Prices less their mean, in units of the scores.
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
  // A choice is in doubt where two experts are within a temperature of each other.
  AugmentingPaths search(rows, scores, unit, solver.prices(), solver.temperature());
  if (!search.run()) return UNSUITED;
  std::copy(search.experts(), search.experts() + tokens, expert_out);
  write_prices(search.centre(), experts, scores.spread(), price_out);
  return DONE;
}

}  // namespace

// scores_TN: T rows of N scores. start_N: N prices to begin with, or null. expert_T and price_N: room for the expert of
// each token, and for the price of each expert. Returns
//   0 when done;
//   1 where memory is short;
//   2 where scores are not finite, too large or too small for float32 sums, or T or N is out of range.
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
