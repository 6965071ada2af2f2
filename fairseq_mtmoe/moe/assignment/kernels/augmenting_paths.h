// Steps 2 and 3: tokens choose, and surplus tokens move along successive shortest augmenting paths (minimum-cost flow
// with prices as potentials), as in ../augmenting_paths.py. See assignment.cpp.
//
// Moving a token from expert a to expert b costs score a - score b. Nodes of the graph are the experts and, last, the
// pool; the cheapest token for each pair of experts is the edge between them. Prices keep reduced costs above zero.
// Differences from the torch version: Dijkstra's algorithm stops at the first expert with room, and only loose tokens
// move, whose second choice is close to the first. They are few, and their scores fit into the caches.
#pragma once

#include <algorithm>
#include <vector>

#include "central_prices.h"
#include "scores.h"

namespace {

constexpr float TOLERANCE = 1e-6f;  // in mean spreads: additional loss of a token over the cheapest that moves with it
constexpr float WIDENING = 8.f;     // factor of the bound on loose tokens, if it was too narrow
constexpr float WIDEST = 100.f;     // in mean spreads: beyond it, all tokens are loose

// Finds every token's best expert at these prices, and its lead over the second.
void choose(const Scores& scores, float unit, const float* prices, int32_t* expert, float* lead) {
  const Floats* value = scores.values();
  for (int64_t b = 0; b < scores.blocks(); ++b, value += scores.experts()) {
    Floats best = value[0] * unit - prices[0], second = Floats{} - INFINITE;
    Ints who = {};
    for (int e = 1; e < scores.experts(); ++e) {
      const Floats worth = value[e] * unit - prices[e];
      const Ints better = worth > best;
      const Floats other = better ? best : worth;
      second = other > second ? other : second;
      best = better ? worth : best;
      who = better ? Ints{} + e : who;
    }
    const Floats ahead = best - second;
    for (int l = 0; l < scores.lanes(b); ++l) {
      expert[b * LANES + l] = who[l];
      lead[b * LANES + l] = ahead[l];
    }
  }
}

// Lowers costs[b] to the minimum of own score - score b over some tokens. Rows are `width` vectors long.
void lower_costs(const Floats* rows, int width, const std::vector<int32_t>& tokens, int own, Floats* costs) {
  for (int32_t token : tokens) {
    const Floats* row = rows + static_cast<int64_t>(token) * width;
    const float here = at(row, own);
    for (int v = 0; v < width; ++v) {
      const Floats loss = here - row[v];
      costs[v] = loss < costs[v] ? loss : costs[v];
    }
  }
}

// The state of Dijkstra's algorithm. `open` is `distance`, but infinite at visited nodes.
struct ShortestPaths {
  explicit ShortestPaths(int width) : distance(width), open(width), previous(width) {}
  Array<Floats> distance, open;
  Array<Ints> previous;
};

// Updates the distances of nodes that are nearer through `node`. Reduced costs below 0 are rounding or tolerance, and
// count as 0.
void relax(const Floats* costs, const Floats* prices, int node, ShortestPaths& paths) {
  const float distance = at(paths.distance.begin(), node);
  const float price = at(prices, node);
  for (size_t v = 0; v < paths.open.size(); ++v) {
    Floats length = costs[v] - price + prices[v] + distance;
    length = length > distance ? length : Floats{} + distance;
    const Ints nearer = length < paths.distance[v];
    paths.distance[v] = nearer ? length : paths.distance[v];
    paths.open[v] = nearer ? length : paths.open[v];
    paths.previous[v] = nearer ? Ints{} + node : paths.previous[v];
  }
}

// Returns the nearest open node, or -1.
int nearest(const ShortestPaths& paths) {
  Floats best = paths.open[0];
  Ints where = {};
  for (size_t v = 1; v < paths.open.size(); ++v) {
    const Ints nearer = paths.open[v] < best;
    best = nearer ? paths.open[v] : best;
    where = nearer ? Ints{} + static_cast<int32_t>(v) : where;
  }
  int node = -1;
  float least = INFINITE;
  for (int l = 0; l < LANES; ++l)
    if (best[l] < least) {
      least = best[l];
      node = where[l] * LANES + l;
    }
  return node;
}

class AugmentingPaths {
 public:
  // reach: tokens are loose if the lead of their best expert is at most this.
  AugmentingPaths(const float* rows, const Scores& scores, float unit, const std::vector<float>& prices, float reach)
      : rows_(rows),
        unit_(unit),
        tokens_(scores.tokens()),
        pool_(scores.experts()),
        width_(vectors_for(pool_ + 1)),
        reach_(reach),
        expert_(tokens_),
        lead_(tokens_),
        prices_(width_, Floats{}),
        costs_(static_cast<size_t>(pool_ + 1) * width_, Floats{} + INFINITE),
        paths_(width_),
        excess_(pool_),
        has_place_(pool_),
        members_(pool_) {
    choose(scores, unit, prices.data(), expert_.begin(), lead_.begin());
    share_places(prices);
    for (int64_t t = 0; t < tokens_; ++t) ++excess_[expert_[t]];
  }

  const int32_t* experts() const { return expert_.begin(); }

  // Moves tokens until loads are even. Each round moves at least one surplus token. Returns false if there is no path,
  // which does not happen with finite scores.
  bool run() {
    gather();
    while (crowded()) {
      const int end = search();
      const float length = end < 0 ? INFINITE : at(paths_.distance.begin(), end);
      // A path through a token that is not loose costs at least reach_, minus the movement of prices since then.
      if (moved_ + length > reach_ && reach_ < INFINITE) {
        reach_ = reach_ < WIDEST ? reach_ * WIDENING : INFINITE;
        gather();
        continue;
      }
      if (end < 0) return false;
      moved_ += length;
      for (int v = 0; v < width_; ++v) {
        const Floats most = Floats{} + length;
        prices_[v] -= paths_.distance[v] < most ? paths_.distance[v] : most;
      }
      move_along(path_to(end));
    }
    return true;
  }

  // Moves the prices to the centre of those that support the assignment, and returns them. Call it after `run`.
  const Floats* centre() {
    count_others();
    CentralPrices central(pool_, width_);
    for (int node = 0; node <= pool_; ++node) {
      const Floats* costs = costs_from(node);
      Floats* room = central.room_from(node);
      const float price = at(prices_.begin(), node);
      for (int v = 0; v < width_; ++v) {
        const Floats above = costs[v] - price + prices_[v];  // below 0 it is rounding or tolerance
        room[v] = above > 0.f ? above : Floats{};
      }
    }
    central.add_middle(prices_.begin());
    return prices_.begin();
  }

 private:
  struct Candidate {
    float loss;
    int32_t token;
    bool operator<(const Candidate& other) const {
      return loss != other.loss ? loss < other.loss : token < other.token;
    }
  };

  Floats* costs_from(int node) { return costs_.begin() + static_cast<size_t>(node) * width_; }
  const float* loose_row(int32_t token) const {
    return reinterpret_cast<const float*>(loose_rows_.begin() + static_cast<int64_t>(token) * width_);
  }
  bool crowded() const {
    return std::any_of(excess_.begin(), excess_.end(), [](int64_t excess) { return excess > 0; });
  }

  // If N does not divide T, the dearest experts get a place for one more token. Places may move: the pool takes the
  // surplus token of an expert without a place, and gives it to one that gives up its place.
  void share_places(const std::vector<float>& prices) {
    std::vector<int> order(pool_);
    for (int e = 0; e < pool_; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return prices[a] > prices[b]; });
    const int places = static_cast<int>(tokens_ % pool_);
    for (int i = 0; i < pool_; ++i) {
      const int e = order[i];
      has_place_[e] = i < places;
      excess_[e] = -(tokens_ / pool_) - has_place_[e];
      set(prices_.begin(), e, prices[e]);
    }
    // Between the prices of experts with and without a place: no step through the pool pays yet.
    set(prices_.begin(), pool_, (prices[order[std::max(places - 1, 0)]] + prices[order[places]]) / 2);
  }

  // Copies the scores of loose tokens side by side, and computes all costs.
  void gather() {
    loose_.clear();
    for (int64_t t = 0; t < tokens_; ++t)
      if (lead_[t] <= reach_) loose_.push_back(static_cast<int32_t>(t));
    loose_rows_ = Array<Floats>(loose_.size() * width_);
    for (auto& members : members_) members.clear();
    for (size_t i = 0; i < loose_.size(); ++i) {
      const float* scores = rows_ + static_cast<int64_t>(loose_[i]) * pool_;
      Floats* row = loose_rows_.begin() + i * width_;
      row[width_ - 1] = Floats{} - INFINITE;  // no token moves to the pool, or to the padding of the last vector
      const float own = scores[expert_[loose_[i]]];  // only differences matter, and these do not overflow
      for (int e = 0; e < pool_; ++e) set(row, e, (scores[e] - own) * unit_);
      members_[expert_[loose_[i]]].push_back(static_cast<int32_t>(i));
    }
    for (int e = 0; e < pool_; ++e) refresh(e);
  }

  // Lowers the costs to those of all tokens, also of those that are not loose.
  void count_others() {
    for (int64_t t = 0; t < tokens_; ++t) {
      if (lead_[t] <= reach_) continue;
      const float* scores = rows_ + t * pool_;
      float* costs = reinterpret_cast<float*>(costs_from(expert_[t]));
      const float own = scores[expert_[t]];
      for (int e = 0; e < pool_; ++e) {
        const float loss = (own - scores[e]) * unit_;
        costs[e] = loss < costs[e] ? loss : costs[e];
      }
    }
  }

  // Computes the costs of steps from an expert, and of its steps to and from the pool.
  void refresh(int expert) {
    Floats* costs = costs_from(expert);
    std::fill(costs, costs + width_, Floats{} + INFINITE);
    lower_costs(loose_rows_.begin(), width_, members_[expert], expert, costs);
    set(costs, pool_, has_place_[expert] ? INFINITE : 0.f);
    set(costs_from(pool_), expert, has_place_[expert] ? 0.f : INFINITE);
  }

  // Returns the expert with room that is nearest to any full expert, or -1.
  int search() {
    paths_.distance.fill(Floats{} + INFINITE);
    paths_.previous.fill(Ints{} - 1);
    for (int e = 0; e < pool_; ++e)
      if (excess_[e] > 0) set(paths_.distance.begin(), e, 0.f);
    std::copy(paths_.distance.begin(), paths_.distance.end(), paths_.open.begin());
    for (int node = nearest(paths_); node >= 0; node = nearest(paths_)) {
      if (node < pool_ && excess_[node] < 0) return node;
      set(paths_.open.begin(), node, INFINITE);
      relax(costs_from(node), prices_.begin(), node, paths_);
    }
    return -1;
  }

  std::vector<int> path_to(int node) const {
    std::vector<int> path;
    for (; node >= 0; node = paths_.previous[node / LANES][node % LANES]) path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
  }

  // Finds the tokens that lose hardly more than the cheapest between two experts, cheapest first.
  void find_candidates(int from, int to, std::vector<Candidate>& candidates) {
    candidates.clear();
    const float limit = at(costs_from(from), to) + TOLERANCE;
    for (int32_t token : members_[from]) {
      const float loss = loose_row(token)[from] - loose_row(token)[to];
      if (loss <= limit) candidates.push_back({loss, token});
    }
    std::sort(candidates.begin(), candidates.end());
  }

  // Moves as many tokens as every step allows; one through the pool.
  void move_along(const std::vector<int>& path) {
    const size_t steps = path.size() - 1;
    if (candidates_.size() < steps) candidates_.resize(steps);
    int64_t count = std::min(excess_[path.front()], -excess_[path.back()]);
    for (size_t i = 0; i < steps; ++i) {
      if (path[i] != pool_ && path[i + 1] != pool_) find_candidates(path[i], path[i + 1], candidates_[i]);
      const bool pooled = path[i] == pool_ || path[i + 1] == pool_;
      count = std::min<int64_t>(count, pooled ? 1 : static_cast<int64_t>(candidates_[i].size()));
    }
    for (size_t i = 0; i < steps; ++i) {
      if (path[i + 1] == pool_)
        has_place_[path[i]] = true;
      else if (path[i] == pool_)
        has_place_[path[i + 1]] = false;
      else
        move(candidates_[i], count, path[i], path[i + 1]);
    }
    excess_[path.front()] -= count;
    excess_[path.back()] += count;
    for (int node : path)
      if (node != pool_) refresh(node);
  }

  void move(const std::vector<Candidate>& candidates, int64_t count, int from, int to) {
    for (int64_t c = 0; c < count; ++c) {
      const int32_t token = candidates[c].token;
      expert_[loose_[token]] = to;
      members_[to].push_back(token);
    }
    auto& members = members_[from];
    const auto left = [&](int32_t token) { return expert_[loose_[token]] != from; };
    members.erase(std::remove_if(members.begin(), members.end(), left), members.end());
  }

  const float* rows_;
  float unit_;
  int64_t tokens_;
  int pool_;          // the pool's node, and the number of experts
  int width_;         // vectors that hold a number for each node
  float reach_;
  float moved_ = 0;   // bound on the movement of prices since leads were computed
  Array<int32_t> expert_;
  Array<float> lead_;
  Array<Floats> prices_, costs_;
  ShortestPaths paths_;
  std::vector<int64_t> excess_;  // tokens above the expert's share
  std::vector<char> has_place_;
  std::vector<int32_t> loose_;
  Array<Floats> loose_rows_;
  std::vector<std::vector<int32_t>> members_;  // loose tokens of each expert, by their place in loose_
  std::vector<std::vector<Candidate>> candidates_;
};

}  // namespace
