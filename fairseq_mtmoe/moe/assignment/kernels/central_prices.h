// Central dual prices: the centre of all prices that support an assignment, as in ../augmenting_paths.py.
// See assignment.cpp.
//
// Prices p support an assignment if p_a - p_b <= c_ab, the loss of the cheapest token on the step from a to b. They
// form a polytope, and shortest paths end at one of its corners, where tokens are torn between two experts. All
// shortest paths give two corners per expert: the distances to it and, negative, from it. If the price of a can be
// above its minimum relative to that of b, it is so at the corner of a. Therefore at the mean of these corners no token
// is torn unless it must be. The mean depends only on the assignment, not on the path to it.
#pragma once

#include <vector>

#include "simd.h"

namespace {

class CentralPrices {
 public:
  // Nodes are the experts and, last, the pool; rows are `width` vectors long.
  CentralPrices(int experts, int width)
      : experts_(experts), width_(width), room_(static_cast<size_t>(experts + 1) * width) {}

  // To be filled in: how far the price of this node may rise relative to each other node, at least 0.
  Floats* room_from(int node) { return room_.begin() + static_cast<size_t>(node) * width_; }

  void add_middle(Floats* prices) {
    close();
    std::vector<double> shift(experts_);
    for (int a = 0; a < experts_; ++a) {
      const Floats* room = room_from(a);
      for (int b = 0; b < experts_; ++b) {
        shift[a] += at(room, b);
        shift[b] -= at(room, b);
      }
    }
    for (int e = 0; e < experts_; ++e) set(prices, e, at(prices, e) + static_cast<float>(shift[e] / (2.0 * experts_)));
  }

 private:
  // Floyd and Warshall's algorithm: the shortest paths between all nodes.
  void close() {
    for (int node = 0; node <= experts_; ++node) set(room_from(node), node, 0.f);
    for (int by = 0; by <= experts_; ++by) {
      const Floats* on = room_from(by);
      for (int from = 0; from <= experts_; ++from) {
        Floats* room = room_from(from);
        const float first = at(room, by);
        if (from == by || first == INFINITE) continue;
        for (int v = 0; v < width_; ++v) {
          const Floats length = on[v] + first;
          room[v] = length < room[v] ? length : room[v];
        }
      }
    }
  }

  int experts_;
  int width_;
  Array<Floats> room_;
};

}  // namespace
