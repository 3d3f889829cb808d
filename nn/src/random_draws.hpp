#pragma once

#include <tessera/nn/module.hpp>

namespace tessera::nn {

/// Access to the counters of random draws in a model.
struct RandomDraws {
  static std::uint64_t get(const Module& m) {
    return m.random_ && m.drawn_ == *m.random_ ? m.draws_ : 0;
  }
  static void set(Module& m, std::uint64_t draws) {
    m.drawn_ = m.random();
    m.draws_ = draws;
  }
};

}  // namespace tessera::nn
