// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <functional>
#include <tessera/core/error.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/failure.hpp>

using namespace tessera;
using namespace tessera::parallel;

namespace {

struct CheckMode {
  CheckMode() { set_collective_checks(true); }
  ~CheckMode() { set_collective_checks(false); }
};

// `f(odd)` makes a call, another one where `odd`; returns this process's error.
std::string error_of(const std::function<Request(bool)>& f, int odd_process) {
  try {
    f(process().rank == odd_process).wait();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the check mode names both sides on every process, and the job goes on") {
  const CheckMode mode;
  const Group world = Group::world();
  const int count = process().count;
  std::vector<float> x(1000, 1.0f);
  std::vector<float> y(8000, 1.0f);
  const auto all = [&](std::int64_t n, DType dtype, ReduceOp op) {
    return all_reduce(world, x.data(), n, dtype, op);
  };
  const std::vector<std::int64_t> even(static_cast<std::size_t>(count), 8);
  std::vector<std::int64_t> shifted = even;
  if (count > 1) {
    // Same total, other pieces.
    shifted[0] += 4;
    shifted[1] -= 4;
  }

  const std::vector<std::pair<std::function<Request(bool)>, std::vector<std::string>>> cases{
      {[&](bool odd) { return all(10, DType::kFloat32, odd ? ReduceOp::kMax : ReduceOp::kSum); },
       {"all_reduce sum f32 x 10", "all_reduce max f32 x 10"}},
      {[&](bool odd) { return all(odd ? 11 : 10, DType::kFloat32, ReduceOp::kSum); },
       {"all_reduce sum f32 x 10", "all_reduce sum f32 x 11"}},
      {[&](bool odd) { return all(10, odd ? DType::kInt32 : DType::kFloat32, ReduceOp::kSum); },
       {"all_reduce sum f32 x 10", "all_reduce sum i32 x 10"}},
      {[&](bool odd) { return odd ? barrier(world) : all(10, DType::kFloat32, ReduceOp::kSum); },
       {"all_reduce sum f32 x 10", "barrier"}},
      {[&](bool odd) { return broadcast(world, x.data(), 40, odd ? count - 1 : 0); },
       {"of 40 bytes from rank 0", str("of 40 bytes from rank ", count - 1)}},
      {[&](bool odd) { return all_gather(world, x.data(), y.data(), odd ? shifted : even); },
       {"all_gather of"}},
      {[&](bool odd) {
         return reduce_scatter(world, y.data(), x.data(), odd ? shifted : even, DType::kFloat64);
       },
       {"reduce_scatter sum f64"}},
  };
  for (const auto& [f, texts] : cases) {
    for (int odd = 0; odd < count; ++odd) {
      const std::string error = error_of(f, odd);
      INFO(error);
      if (count == 1) {
        CHECK(error.empty());
        continue;
      }
      CHECK(error.find("processes disagree (process " + std::to_string(process().rank)) !=
            std::string::npos);
      for (const std::string& text : texts) CHECK(error.find(text) != std::string::npos);
    }
    CHECK(error_of(f, -1).empty());
  }
  CHECK_FALSE(job_failed());
  CHECK(outstanding() == 0);
}

TEST_CASE("sizes of an all-to-all that only two processes disagree about stop all") {
  const CheckMode mode;
  const int count = process().count;
  if (count < 2) return;
  std::vector<char> in(100, 1);
  std::vector<char> out(100);
  const std::vector<std::int64_t> even(static_cast<std::size_t>(count), 8);
  const std::string error = error_of(
      [&](bool odd) {
        std::vector<std::int64_t> sizes = even;
        if (odd) sizes[0] = 9;
        return all_to_all(Group::world(), in.data(), sizes, out.data(), even);
      },
      count - 1);
  INFO(error);
  CHECK(error.find("processes disagree") != std::string::npos);
  if (process().rank == 0) {
    CHECK(error.find("all_to_all sending 8 and expecting 9 bytes") == std::string::npos);
    CHECK(error.find("all_to_all sending 9 and expecting 8 bytes") != std::string::npos);
  }
}

TEST_CASE("an exchange compares the bytes between two neighbours") {
  const CheckMode mode;
  if (process().count < 2) return;
  std::vector<char> in(100, 1);
  std::vector<char> out(100);
  std::string error;
  if (process().rank < 2) {
    const int peer = 1 - process().rank;
    error = error_of(
        [&](bool odd) {
          return exchange_messages(std::vector<Send>{{peer, in.data(), odd ? 12 : 10}},
                                   std::vector<Recv>{{peer, out.data(), 10}});
        },
        1);
    INFO(error);
    CHECK(error.find("exchange: processes disagree") == 0);
    CHECK(error.find("sending 12 and expecting 10") != std::string::npos);
  }
  barrier(Group::world()).wait();
}

TEST_CASE("all calls work in the check mode") {
  const CheckMode mode;
  const int count = process().count;
  for (int repeat = 0; repeat < 3; ++repeat) {
    float x = 1;
    all_reduce(Group::world(), &x, 1, DType::kFloat32).wait();
    CHECK(x == static_cast<float>(count));
    std::vector<std::int64_t> one(static_cast<std::size_t>(count), 1);
    std::vector<char> in(static_cast<std::size_t>(count), static_cast<char>(process().rank));
    std::vector<char> out(static_cast<std::size_t>(count), 99);
    all_to_all(Group::world(), in.data(), one, out.data(), one).wait();
    for (int r = 0; r < count; ++r) CHECK(out[static_cast<std::size_t>(r)] == r);
    const int next = (process().rank + 1) % count;
    const int previous = (process().rank + count - 1) % count;
    int mine = process().rank;
    int theirs = -1;
    exchange_messages(std::vector<Send>{{next, &mine, 4}},
                      std::vector<Recv>{{previous, &theirs, 4}})
        .wait();
    CHECK(theirs == previous);
  }
}
