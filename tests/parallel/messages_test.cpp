// ranks: 1 2 3 4 8
#include <catch2/catch.hpp>
#include <random>
#include <tessera/core/error.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>
#include <tessera/parallel/transport.hpp>
#include <thread>

using namespace tessera;
using namespace tessera::parallel;

namespace {

std::size_t u(std::int64_t i) { return static_cast<std::size_t>(i); }
int right() { return (process().rank + 1) % process().count; }
int left() { return (process().rank + process().count - 1) % process().count; }

}  // namespace

TEST_CASE("send and receive round a ring, any size, any tag") {
  const int self = process().rank;
  for (const std::int64_t n : {0, 1, 1000, 3000000}) {
    std::vector<std::uint8_t> a(u(n) + 1, static_cast<std::uint8_t>(self + 1));
    std::vector<std::uint8_t> b(u(n) + 1, static_cast<std::uint8_t>(self + 101));
    std::vector<std::uint8_t> from_a(u(n) + 1);
    std::vector<std::uint8_t> from_b(u(n) + 1);
    // Tags decide, not the order.
    Request rb = irecv(from_b.data(), n, left(), kMaxTag);
    Request ra = irecv(from_a.data(), n, left(), 0);
    Request sa = isend(a.data(), n, right(), 0);
    Request sb = isend(b.data(), n, right(), kMaxTag);
    ra.wait();
    rb.wait();
    sa.wait();
    sb.wait();
    for (std::int64_t i = 0; i < n; ++i) {
      if (from_a[u(i)] != left() + 1 || from_b[u(i)] != left() + 101)
        REQUIRE(from_a[u(i)] == left() + 1);
    }
    REQUIRE(from_a.back() == 0);
  }
}

TEST_CASE("messages with one tag arrive in order") {
  std::vector<int> out(50);
  std::vector<int> in(50, -1);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < 50; ++i) {
    out[i] = static_cast<int>(i) + 100 * process().rank;
    requests.push_back(isend(&out[i], 4, right(), 5));
  }
  for (std::size_t i = 0; i < 50; ++i) requests.push_back(irecv(&in[i], 4, left(), 5));
  wait_all(requests);
  for (std::size_t i = 0; i < 50; ++i) REQUIRE(in[i] == static_cast<int>(i) + 100 * left());
}

TEST_CASE("exchanges in flight at once never mix, among collectives") {
  std::mt19937 random(11);
  const int self = process().rank;
  const int count = process().count;
  for (int trial = 0; trial < 10; ++trial) {
    constexpr int kExchanges = 8;
    std::vector<std::vector<std::vector<int>>> out(kExchanges);
    std::vector<std::vector<std::vector<int>>> in(kExchanges);
    std::vector<std::vector<std::vector<int>>> expected(kExchanges);
    std::vector<float> sums(kExchanges, 1.0f);
    std::vector<Request> requests;
    for (int e = 0; e < kExchanges; ++e) {
      std::vector<std::pair<int, std::size_t>> send_sizes;
      std::vector<std::pair<int, std::size_t>> recv_sizes;
      for (int from = 0; from < count; ++from) {
        for (int to = 0; to < count; ++to) {
          const auto messages = random() % 3;
          for (unsigned m = 0; m < messages; ++m) {
            const std::size_t size = random() % (m == 0 ? 40000 : 5);
            std::vector<int> content(size, from * 10000 + to * 1000 + e * 10 + static_cast<int>(m));
            if (from == self) {
              send_sizes.emplace_back(to, size);
              out[u(e)].push_back(content);
            }
            if (to == self) {
              recv_sizes.emplace_back(from, size);
              in[u(e)].emplace_back(size, -1);
              expected[u(e)].push_back(content);
            }
          }
        }
      }
      std::vector<Send> sends;
      std::vector<Recv> recvs;
      for (std::size_t m = 0; m < send_sizes.size(); ++m) {
        out[u(e)][m].reserve(1);
        sends.push_back({send_sizes[m].first, out[u(e)][m].data(),
                         static_cast<std::int64_t>(send_sizes[m].second * sizeof(int))});
      }
      for (std::size_t m = 0; m < recv_sizes.size(); ++m) {
        in[u(e)][m].reserve(1);
        recvs.push_back({recv_sizes[m].first, in[u(e)][m].data(),
                         static_cast<std::int64_t>(recv_sizes[m].second * sizeof(int))});
      }
      requests.push_back(exchange_messages(sends, recvs));
      requests.push_back(all_reduce(Group::world(), &sums[u(e)], 1, DType::kFloat32));
    }
    std::shuffle(requests.begin(), requests.end(),
                 std::mt19937(static_cast<unsigned>(trial * 7 + self)));
    wait_all(requests);
    REQUIRE(in == expected);
    for (const float sum : sums) REQUIRE(sum == static_cast<float>(count));
  }
}

TEST_CASE("a dropped request with kept buffers completes in the background") {
  const int self = process().rank;
  Ref<Buffer> out = MemoryPool::of({}).allocate(4 << 20);
  Ref<Buffer> in = MemoryPool::of({}).allocate(4 << 20);
  std::fill_n(out->data(), out->bytes(), static_cast<std::byte>(self + 1));
  {
    const auto n = static_cast<std::int64_t>(4 << 20);
    Request receive = irecv(in->data(), n, left(), 1);
    receive.keep(in);
    Request send = isend(out->data(), n, right(), 1);
    send.keep(out);
  }
  while (outstanding() > 0) poll();
  REQUIRE(in->data()[(4 << 20) - 1] == static_cast<std::byte>(left() + 1));
  REQUIRE(in->use_count() == 1);
  REQUIRE(out->use_count() == 1);
}

TEST_CASE("a dropped request without kept buffers is waited for") {
  std::vector<int> x(300000, process().rank);
  std::vector<int> y(300000, -1);
  {
    Request a = irecv(y.data(), 1200000, left(), 2);
    Request b = isend(x.data(), 1200000, right(), 2);
    a = Request();  // waits, with b progressing
    REQUIRE(y.back() == left());
  }
  REQUIRE(outstanding() == 0);
}

TEST_CASE("kernels' progress function moves calls of several stages") {
  std::vector<double> x(500000, 1.0);
  Request request = all_reduce(Group::world(), x.data(), 500000, DType::kFloat64);
  while (outstanding() > 0) {
    if (process().count > 1) {
      poll_progress();
    } else {
      poll();
    }
  }
  REQUIRE(request.test());
  REQUIRE(x[499999] == static_cast<double>(process().count));
}

TEST_CASE("only one thread communicates") {
  barrier(Group::world()).wait();
  bool refused = false;
  std::thread([&] {
    poll();  // returns
    try {
      barrier(Group()).wait();
    } catch (const UsageError&) {
      refused = true;
    }
  }).join();
  REQUIRE(refused);
}

TEST_CASE("counters are exact") {
  const Group world = Group::world();
  const std::int64_t count = process().count;
  const std::int64_t others = count - 1;
  reset_comm_stats();
  std::vector<float> x(100000, 1.0f);

  all_reduce(world, x.data(), 100, DType::kFloat32).wait();
  CommCounters c = comm_stats()[CallKind::kAllReduce];
  CHECK(c.calls == 1);
  CHECK(c.messages == others);
  CHECK(c.bytes == others * 400);

  // Long: each element leaves once towards its owner; the owner sends its piece to the others.
  reset_comm_stats();
  all_reduce(world, x.data(), 100000, DType::kFloat32).wait();
  c = comm_stats()[CallKind::kAllReduce];
  const std::int64_t own = 100000 * (process().rank + 1) / count - 100000 * process().rank / count;
  CHECK(c.messages == 2 * others);
  CHECK(c.bytes == (100000 - own) * 4 + own * 4 * others);

  reset_comm_stats();
  barrier(world).wait();
  CHECK(comm_stats()[CallKind::kBarrier].messages == others);
  CHECK(comm_stats()[CallKind::kBarrier].bytes == 0);

  const std::vector<Send> sends{{right(), x.data(), 12}, {right(), x.data(), 8}};
  std::vector<float> y(10);
  const std::vector<Recv> recvs{{left(), y.data(), 12}, {left(), y.data() + 5, 8}};
  exchange_messages(sends, recvs).wait();
  CHECK(comm_stats()[CallKind::kExchange].calls == 1);
  CHECK(comm_stats()[CallKind::kExchange].messages == (count > 1 ? 2 : 0));
  CHECK(comm_stats()[CallKind::kExchange].bytes == (count > 1 ? 20 : 0));

  Request receive = irecv(y.data(), 4, left(), 0);
  isend(x.data(), 4, right(), 0).wait();
  receive.wait();
  const CommStats stats = comm_stats();
  CHECK(stats[CallKind::kSend].bytes == (count > 1 ? 4 : 0));
  CHECK(stats[CallKind::kRecv].bytes == 0);
  CHECK(stats.point_to_point().calls == 3);
  CHECK(stats.point_to_point().bytes == (count > 1 ? 24 : 0));
  CHECK(stats.total().calls == 4);
  CHECK(stats.str().find("exchange") != std::string::npos);

  // The check mode's own messages do not count.
  reset_comm_stats();
  set_collective_checks(true);
  barrier(world).wait();
  set_collective_checks(false);
  CHECK(comm_stats().total().calls == 1);
  CHECK(comm_stats().total().messages == others);
}

TEST_CASE("the last calls are kept") {
  float x = 1;
  for (int i = 0; i < 300; ++i)
    all_reduce(Group::world(), &x, 1, DType::kFloat32, ReduceOp::kMax).wait();
  const Layout layout = Layout::replicated(Mesh::self(), {3, 5});
  Request receive = irecv(&x, 4, process().rank, 9, {.op = "probe", .layout = layout});
  const std::vector<std::string> calls = recent_calls();
  REQUIRE(calls.size() == 256);
  INFO(calls.back());
  CHECK(calls.back().find("receive #") == 0);
  CHECK(calls.back().find("of 4 bytes from process") != std::string::npos);
  CHECK(calls.back().find("for probe [3, 5]") != std::string::npos);
  CHECK(calls.back().find("(not done)") != std::string::npos);
  CHECK(calls[254].find("all_reduce #") == 0);
  CHECK(calls[254].find(" max f32 x 1 in {0") != std::string::npos);
  CHECK(calls[254].find("(not done)") == std::string::npos);
  float y = 2;
  isend(&y, 4, process().rank, 9).wait();
  receive.wait();
  CHECK(x == 2.0f);
}

namespace {

// Transports that misbehave, as a test of a test would put them in.
class Wrapper : public Transport {
 public:
  explicit Wrapper(std::unique_ptr<Transport>& inner) : inner_(inner) {}

 protected:
  std::unique_ptr<Transport>& inner_;
};

class SwapsNeighbours : public Wrapper {
 public:
  using Wrapper::Wrapper;
  Ref<Operation> start(const Call& call) override {
    Call changed = call;
    if (changed.recvs.size() == 2) std::swap(changed.recvs[0].data, changed.recvs[1].data);
    return inner_->start(changed);
  }
};

class DropsReductions : public Wrapper {
 public:
  using Wrapper::Wrapper;
  Ref<Operation> start(const Call& call) override {
    Call changed = call;
    if (call.kind == CallKind::kAllReduce) changed.group = Group();
    return inner_->start(changed);
  }
};

template <class T, class F>
void with_transport(F&& f) {
  std::unique_ptr<Transport> inner;
  inner = exchange_transport(Device::kCpu, std::make_unique<T>(inner));
  f();
  exchange_transport(Device::kCpu, std::move(inner));
}

}  // namespace

TEST_CASE("faults can be planted in the transport") {
  const auto neighbours = [] {
    const int mine[2] = {10 * process().rank, 10 * process().rank + 1};
    std::array<int, 2> got{-1, -1};
    exchange_messages(std::vector<Send>{{left(), &mine[0], 4}, {right(), &mine[1], 4}},
                      std::vector<Recv>{{right(), &got[0], 4}, {left(), &got[1], 4}})
        .wait();
    return got;
  };
  const auto sum = [] {
    int x = 1;
    all_reduce(Group::world(), &x, 1, DType::kInt32).wait();
    return x;
  };
  const std::array<int, 2> right_answer = neighbours();
  if (process().count > 2) {
    CHECK(right_answer == std::array<int, 2>{10 * right(), 10 * left() + 1});
    with_transport<SwapsNeighbours>([&] {
      CHECK(neighbours() == std::array<int, 2>{right_answer[1], right_answer[0]});
    });
  }
  with_transport<DropsReductions>([&] { CHECK(sum() == 1); });
  CHECK(sum() == process().count);
  CHECK(neighbours() == right_answer);
}
