// ranks: 1 2 3 4 8
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <tessera/core/error.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/failure.hpp>
#include <tessera/parallel/stats.hpp>

using namespace tessera;
using namespace tessera::parallel;

namespace {

using Counts = std::vector<std::int64_t>;

std::size_t u(std::int64_t i) { return static_cast<std::size_t>(i); }

// Element i of the contribution of process p in round `round`, the same on whichever process asks.
double value(int round, int p, std::int64_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(p) * 0xbf58476d1ce4e5b9u +
                    static_cast<std::uint64_t>(round) * 0x94d049bb133111ebu;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1.0;
}

template <class T>
T element(int round, int p, std::int64_t i) {
  const double v = value(round, p, i);
  if constexpr (std::is_same_v<T, bool>) {
    return v > 0.3;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(static_cast<float>(v));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(std::is_same_v<T, std::uint8_t> ? std::fabs(v) * 255.0 : v * 1e9);
  } else {
    return static_cast<T>(v * 1e3);
  }
}

// bool has no vector of addressable elements.
template <class T>
struct Storage {
  explicit Storage(std::int64_t n) : memory(new T[u(n) + 1]()), count(n) {}
  T* data() { return memory.get(); }
  T& operator[](std::int64_t i) { return memory[u(i)]; }
  std::unique_ptr<T[]> memory;
  std::int64_t count;
};

template <class T>
Storage<T> contribution(int round, int p, std::int64_t n) {
  Storage<T> x(n);
  for (std::int64_t i = 0; i < n; ++i) x[i] = element<T>(round, p, i);
  return x;
}

// The definition: one loop over the members in their order.
template <class T>
T reduced(ReduceOp op, const Group& group, int round, std::int64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    bool any = false;
    bool all = true;
    for (const int p : group.processes()) {
      any = any || element<T>(round, p, i);
      all = all && element<T>(round, p, i);
    }
    return op == ReduceOp::kMin ? all : any;
  } else {
    using A = std::conditional_t<std::is_same_v<T, BFloat16>, float,
                                 std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>>;
    if (op == ReduceOp::kSum) {
      A sum = static_cast<A>(element<T>(round, group.process_of(0), i));
      for (int r = 1; r < group.size(); ++r) {
        sum = static_cast<A>(sum + static_cast<A>(element<T>(round, group.process_of(r), i)));
      }
      return static_cast<T>(sum);
    }
    double best = value(round, group.process_of(0), i);
    T result = element<T>(round, group.process_of(0), i);
    for (const int p : group.processes()) {
      const T x = element<T>(round, p, i);
      const auto larger = static_cast<double>(static_cast<float>(x)) >
                          static_cast<double>(static_cast<float>(result));
      if constexpr (std::is_same_v<T, BFloat16>) {
        if (larger == (op == ReduceOp::kMax)) result = x;
      } else {
        result = op == ReduceOp::kMax ? std::max(result, x) : std::min(result, x);
      }
    }
    (void)best;
    return result;
  }
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Groups that this process takes part in: all, reversed, and those of a two-way split.
std::vector<Group> my_groups() {
  std::vector<Group> groups{Group::world()};
  std::vector<int> reversed(Group::world().processes().rbegin(), Group::world().processes().rend());
  groups.push_back(Group::of(reversed));
  std::vector<int> same_parity;
  for (int p = process().rank % 2; p < process().count; p += 2) same_parity.push_back(p);
  groups.push_back(Group::of(same_parity));
  groups.push_back(Group());
  return groups;
}

template <class T>
void check_all_reduce(const Group& group, ReduceOp op, std::int64_t n) {
  static int round = 0;
  ++round;
  Storage<T> x = contribution<T>(round, process().rank, n);
  all_reduce(group, x.data(), n, dtype_of<T>, op).wait();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!same_bits(x[i], reduced<T>(op, group, round, i))) ++wrong;
  }
  INFO(name(dtype_of<T>) << " " << name(op) << " x " << n << " in " << group.str());
  REQUIRE(wrong == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("all_reduce equals the sum in group order, bit for bit",
                   "",
                   float,
                   double,
                   BFloat16,
                   std::int32_t,
                   std::int64_t,
                   std::uint8_t,
                   bool) {
  for (const Group& group : my_groups()) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      for (const std::int64_t n : {0, 1, 2, 7, 1023, 20011}) {
        check_all_reduce<TestType>(group, op, n);
      }
    }
  }
  check_all_reduce<TestType>(Group::world(), ReduceOp::kSum, 300007);
}

TEST_CASE("all_reduce of more than one segment") {
  const std::int64_t n = (std::int64_t{70} << 20) + 13;
  Storage<std::uint8_t> x(n);
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<std::uint8_t>(i * 7 + process().rank * (i % 13));
  }
  all_reduce(Group::world(), x.data(), n, DType::kUInt8).wait();
  const int count = process().count;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t sum = count * i * 7 + count * (count - 1) / 2 * (i % 13);
    if (x[i] != static_cast<std::uint8_t>(sum)) ++wrong;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("maximum and minimum keep a NaN from any member") {
  for (int who = 0; who < process().count; ++who) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    float high = process().rank == who ? nan : 1.0f;
    float low = high;
    all_reduce(Group::world(), &high, 1, DType::kFloat32, ReduceOp::kMax).wait();
    all_reduce(Group::world(), &low, 1, DType::kFloat32, ReduceOp::kMin).wait();
    REQUIRE(std::isnan(high));
    REQUIRE(std::isnan(low));
  }
}

TEST_CASE("sums of floats depend on the order, and the order is that of the group") {
  // 1 + 1e8 - 1e8 is 0 or 1 in fp32; a sum in another order fails here.
  if (process().count < 3) return;
  const auto run = [&](const std::vector<int>& order, std::int64_t n) {
    std::vector<float> x(u(n), 0.0f);
    const int r = process().rank;
    for (float& v : x) v = r == 0 ? 1.0f : r == 1 ? 1e8f : r == 2 ? -1e8f : 0.0f;
    all_reduce(Group::of(order), x.data(), n, DType::kFloat32).wait();
    for (const float v : x) REQUIRE(v == x[0]);
    return x[0];
  };
  std::vector<int> order(u(process().count));
  std::iota(order.begin(), order.end(), 0);
  for (const std::int64_t n : {1, 100000}) {
    REQUIRE(run(order, n) == 0.0f);
    std::vector<int> other = order;
    std::swap(other[0], other[2]);  // -1e8, 1e8, 1
    REQUIRE(run(other, n) == 1.0f);
  }
}

TEMPLATE_TEST_CASE(
    "reduce_scatter with uneven and zero counts", "", float, BFloat16, std::int64_t) {
  static int round = 1000;
  for (const Group& group : my_groups()) {
    for (const std::int64_t scale : {1, 5000}) {
      for (const int empty : {-1, 0, group.size() - 1}) {
        ++round;
        Counts counts;
        for (int r = 0; r < group.size(); ++r)
          counts.push_back(r == empty ? 0 : scale * (r + 1) + r % 2);
        const std::int64_t n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        const std::int64_t begin =
            std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
        const std::int64_t own = counts[u(group.rank())];
        Storage<TestType> in = contribution<TestType>(round, process().rank, n);
        Storage<TestType> out(own);
        reduce_scatter(group, in.data(), out.data(), counts, dtype_of<TestType>).wait();
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < own; ++i) {
          if (!same_bits(out[i], reduced<TestType>(ReduceOp::kSum, group, round, begin + i)))
            ++wrong;
        }
        REQUIRE(wrong == 0);
        // In place.
        reduce_scatter(group, in.data(), in.data() + begin, counts, dtype_of<TestType>).wait();
        for (std::int64_t i = 0; i < own; ++i) REQUIRE(same_bits(in[begin + i], out[i]));
      }
    }
  }
}

TEST_CASE("reduce_scatter of more than one segment") {
  const int count = process().count;
  Counts counts;
  for (int r = 0; r < count; ++r) counts.push_back((std::int64_t{24} << 20) / count + 1000 * r);
  const std::int64_t n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<std::int32_t> in(u(n));
  for (std::int64_t i = 0; i < n; ++i)
    in[u(i)] = static_cast<std::int32_t>(i * (process().rank + 1));
  const std::int64_t begin =
      std::accumulate(counts.begin(), counts.begin() + process().rank, std::int64_t{0});
  std::vector<std::int32_t> out(u(counts[u(process().rank)]));
  reduce_scatter(Group::world(), in.data(), out.data(), counts, DType::kInt32).wait();
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t sum = (begin + static_cast<std::int64_t>(i)) * count * (count + 1) / 2;
    if (out[i] != static_cast<std::int32_t>(sum)) ++wrong;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("all_gather with uneven and zero counts, also in place") {
  for (const Group& group : my_groups()) {
    for (const std::int64_t scale : {1, 30000}) {
      for (const int empty : {-1, 0, group.size() / 2}) {
        Counts bytes;
        for (int r = 0; r < group.size(); ++r)
          bytes.push_back(r == empty ? 0 : scale * (2 * r + 1));
        const std::int64_t n = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
        const std::int64_t begin =
            std::accumulate(bytes.begin(), bytes.begin() + group.rank(), std::int64_t{0});
        std::vector<std::uint8_t> expected;
        for (int r = 0; r < group.size(); ++r) {
          for (std::int64_t i = 0; i < bytes[u(r)]; ++i) {
            expected.push_back(element<std::uint8_t>(7, group.process_of(r), i));
          }
        }
        const std::int64_t own = bytes[u(group.rank())];
        Storage<std::uint8_t> in = contribution<std::uint8_t>(7, process().rank, own);
        std::vector<std::uint8_t> out(u(n), 99);
        all_gather(group, in.data(), out.data(), bytes).wait();
        REQUIRE(out == expected);

        std::vector<std::uint8_t> place(u(n) + 1, 98);
        if (own > 0) std::memcpy(place.data() + begin, in.data(), u(own));
        all_gather(group, place.data() + begin, place.data(), bytes).wait();
        place.pop_back();
        REQUIRE(place == expected);
      }
    }
  }
  const Counts counts = all_gather_counts(Group::world(), 10 + process().rank);
  for (int r = 0; r < process().count; ++r) REQUIRE(counts[u(r)] == 10 + r);
}

TEST_CASE("all_to_all with uneven and zero counts") {
  const auto amount = [](int from, int to, std::int64_t scale) {
    return (from + 2 * to) % 3 == 0 ? 0 : scale * (1 + from) + to;
  };
  for (const Group& group : my_groups()) {
    for (const std::int64_t scale : {1, 20000}) {
      Counts in_bytes;
      Counts out_bytes;
      std::vector<std::uint8_t> in;
      std::vector<std::uint8_t> expected;
      const int self = process().rank;
      for (const int p : group.processes()) {
        in_bytes.push_back(amount(self, p, scale));
        out_bytes.push_back(amount(p, self, scale));
        for (std::int64_t i = 0; i < in_bytes.back(); ++i) {
          in.push_back(element<std::uint8_t>(p, self, i));
        }
        for (std::int64_t i = 0; i < out_bytes.back(); ++i) {
          expected.push_back(element<std::uint8_t>(self, p, i));
        }
      }
      std::vector<std::uint8_t> out(expected.size(), 99);
      in.reserve(1);
      out.reserve(1);
      all_to_all(group, in.data(), in_bytes, out.data(), out_bytes).wait();
      REQUIRE(out == expected);
    }
  }
}

TEST_CASE("broadcast from every root, short and long") {
  for (const Group& group : my_groups()) {
    for (int root = 0; root < group.size(); ++root) {
      for (const std::int64_t n : {0, 1, 1000, 65537, 500003}) {
        std::vector<std::uint8_t> x(u(n) + 1, 77);
        std::vector<std::uint8_t> expected(u(n) + 1, 77);
        for (std::int64_t i = 0; i < n; ++i) {
          expected[u(i)] = element<std::uint8_t>(root, group.process_of(root), i);
        }
        if (group.rank() == root) x = expected;
        broadcast(group, x.data(), n, root).wait();
        REQUIRE(x == expected);
      }
    }
  }
}

TEST_CASE("calls in flight at once never mix, whatever order they are awaited in") {
  std::mt19937 random(5);
  const Group world = Group::world();
  const std::vector<Group> groups = my_groups();
  for (int trial = 0; trial < 20; ++trial) {
    constexpr int kCalls = 24;
    std::vector<std::vector<std::int64_t>> data(kCalls);
    std::vector<std::vector<std::int64_t>> results(kCalls);
    std::vector<const Group*> used(kCalls);
    std::vector<Request> requests;
    for (int c = 0; c < kCalls; ++c) {
      const std::int64_t n = 1 + static_cast<std::int64_t>(random() % 30000);
      // The groups of one call differ between processes but fit each other.
      const Group& group = groups[random() % groups.size()];
      used[u(c)] = &group;
      data[u(c)].assign(u(n), process().rank + 1000 * c);
      if (random() % 2 == 0) {
        results[u(c)].resize(u(n * group.size()));
        requests.push_back(all_gather(group, data[u(c)].data(), results[u(c)].data(), n * 8));
      } else {
        results[u(c)] = data[u(c)];
        requests.push_back(all_reduce(group, results[u(c)].data(), n, DType::kInt64));
      }
    }
    // Each process in an order of its own.
    std::vector<int> order(kCalls);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(),
                 std::mt19937(static_cast<unsigned>(trial * 31 + process().rank)));
    for (const int c : order) requests[u(c)].wait();
    for (int c = 0; c < kCalls; ++c) {
      const Group& group = *used[u(c)];
      const std::size_t n = data[u(c)].size();
      if (results[u(c)].size() == n && group.size() > 1) {
        std::int64_t sum = 0;
        for (const int p : group.processes()) sum += p + 1000 * c;
        REQUIRE(results[u(c)] == std::vector<std::int64_t>(n, sum));
      } else {
        for (std::size_t i = 0; i < results[u(c)].size(); ++i) {
          const std::int64_t expected = group.process_of(static_cast<int>(i / n)) + 1000 * c;
          if (results[u(c)][i] != expected) REQUIRE(results[u(c)][i] == expected);
        }
      }
    }
  }
  REQUIRE(outstanding() == 0);
  barrier(world).wait();
}

TEST_CASE("a barrier is done only after all have started it") {
  const int self = process().rank;
  const int count = process().count;
  for (int last = 0; last < count; ++last) {
    // The last one starts when a message from each of the others says that they have started.
    std::vector<Request> messages;
    std::vector<char> bytes(u(count), 0);
    if (self != last) {
      Request request = barrier(Group::world());
      REQUIRE_FALSE(request.test());
      isend(&bytes[0], 1, last, 3).wait();
      request.wait();
    } else {
      for (int p = 0; p < count; ++p) {
        if (p != self) irecv(&bytes[u(p)], 1, p, 3).wait();
      }
      barrier(Group::world()).wait();
    }
  }
}

TEST_CASE("repeated sums are the same bits") {
  for (const std::int64_t n : {1000, 100000}) {
    std::vector<float> first;
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::vector<float> x(u(n));
      for (std::int64_t i = 0; i < n; ++i) x[u(i)] = element<float>(3, process().rank, i);
      all_reduce(Group::world(), x.data(), n, DType::kFloat32).wait();
      if (repeat == 0) first = x;
      REQUIRE(std::memcmp(first.data(), x.data(), x.size() * sizeof(float)) == 0);
    }
    // And on every member.
    std::vector<float> all(u(n * process().count));
    all_gather(Group::world(), first.data(), all.data(), n * 4).wait();
    for (int r = 0; r < process().count; ++r) {
      REQUIRE(std::memcmp(all.data() + n * r, first.data(), u(n) * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("wrong arguments are refused before anything is sent") {
  reset_comm_stats();
  float x = 0;
  const Group world = Group::world();
  CHECK_THROWS_AS(broadcast(world, &x, 4, world.size()), UsageError);
  CHECK_THROWS_AS(broadcast(world, nullptr, 4, 0), UsageError);
  CHECK_THROWS_AS(all_reduce(world, &x, -1, DType::kFloat32), UsageError);
  CHECK_THROWS_AS(isend(&x, 4, process().count, 0), UsageError);
  CHECK_THROWS_AS(isend(&x, 4, 0, -1), UsageError);
  CHECK_THROWS_AS(isend(&x, 4, 0, kMaxTag + 1), UsageError);
  const Counts too_many(u(world.size()) + 1, 4);
  CHECK_THROWS_AS(all_gather(world, &x, &x, too_many), UsageError);
  CHECK_THROWS_AS(Group::of(std::vector<int>{}), UsageError);
  CHECK_THROWS_AS(Group::of({0, 0}), UsageError);
  CHECK_THROWS_AS(Group::of({process().count}), UsageError);
  if (process().count > 1) {
    const Group others = Group::of({(process().rank + 1) % process().count});
    CHECK_THROWS_AS(barrier(others), UsageError);
  }
  CHECK(comm_stats().total().calls == 0);
  CHECK_FALSE(job_failed());
}

TEST_CASE("groups follow the axes of a mesh") {
  if (process().count != 4) return;
  const Mesh mesh = Mesh::world({{"data", 2}, {"h", 2}});
  const int self = process().rank;
  const Group rows = Group::of(mesh, AxisMask{1} << mesh.axis("h"));
  CHECK(rows.processes() == std::vector<int>{self / 2 * 2, self / 2 * 2 + 1});
  CHECK(rows.rank() == self % 2);
  const Group columns = Group::of(mesh, AxisMask{1} << mesh.axis("data"));
  CHECK(columns.processes() == std::vector<int>{self % 2, self % 2 + 2});
  CHECK(Group::of(mesh, mesh.all_axes()) == Group::world());
  CHECK(Group::of(mesh, 0) == Group());
}
