// ranks: 1 2 3
// Statistics in one shared pass, samples made ahead, and what is done with a sample.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/augment.hpp>
#include <tessera/nn/data/grid_field.hpp>
#include <tessera/nn/data/prefetch.hpp>
#include <tessera/nn/data/statistics.hpp>
#include <thread>

#include "shared_dir.hpp"
#include "zip_support.hpp"

using namespace tessera;
using data::Augmentation;
using data::Moments;

namespace {

io::Collective world() { return nn::collective(Mesh::world({{"p", process().count}})); }

std::string npy(const std::vector<float>& values, const std::string& shape) {
  return test::npy_header("<f4", shape) +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
}

}  // namespace

TEST_CASE("moments of parts are those of the whole") {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(1e6, 2.0);
  std::vector<double> x(1000);
  std::vector<double> w(1000);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 7 == 0 ? NAN : normal(random);
    w[i] = i % 5 == 0 ? 0.0 : 0.5 + static_cast<double>(i % 3);
  }
  long double weight = 0, sum = 0, m2 = 0;
  std::int64_t count = 0, missing = 0;
  double low = INFINITY, high = -INFINITY;
  for (std::size_t i = 0; i < x.size(); ++i) {
    missing += std::isnan(x[i]);
    if (std::isnan(x[i]) || w[i] == 0) continue;
    ++count;
    weight += w[i];
    sum += static_cast<long double>(w[i]) * x[i];
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const auto mean = sum / weight;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!std::isnan(x[i])) m2 += w[i] * (x[i] - mean) * (x[i] - mean);
  Moments all;
  for (const auto& [lo, hi] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {1, 1}, {1, 400}, {400, 1000}})
    all.merge(Moments::of(std::span(x).subspan(lo, hi - lo), std::span(w).subspan(lo, hi - lo)));
  CHECK(all.count == count);
  CHECK(all.missing == missing);
  CHECK(all.min == low);
  CHECK(all.max == high);
  CHECK(all.weight == Approx(static_cast<double>(weight)).epsilon(1e-14));
  CHECK(all.mean == Approx(static_cast<double>(mean)).epsilon(1e-14));
  CHECK(all.m2 == Approx(static_cast<double>(m2)).epsilon(1e-9));
  CHECK(Moments::of(std::vector<double>{2.0, 2.0}).std() == 1.0);
  CHECK(data::area_weights({0, 60, -60, 90})[1] == Approx(0.5));
}

TEST_CASE("the ranks share one pass, and agree to the bit") {
  const io::Collective ranks = world();
  const test::SharedDir dir(ranks);
  const std::int64_t times = 5, rows = 700, columns = 1000;
  if (ranks.rank == 0) {
    std::vector<float> values(static_cast<std::size_t>(times * rows * columns));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i % 1001 == 0 ? NAN : static_cast<float>(i % 977) * 0.25f;
    test::write_file(dir / "a.npy", npy(values, "(5, 700, 1000)"));
  }
  ranks.barrier();
  const auto reader = io::open_fields(dir / "a.npy");
  const Moments shared = data::statistics(*reader, "array", ranks);
  CHECK(ranks.total(reader->bytes_read()) == times * rows * columns * 4);  // once, by all together
  const auto again = io::open_fields(dir / "a.npy");
  const Moments alone = data::statistics(*again, "array");
  CHECK(shared.mean == alone.mean);
  CHECK(shared.m2 == alone.m2);
  CHECK(shared.count == alone.count);
  CHECK(shared.missing == 3497);
  CHECK(shared.min == 0.0);
  CHECK(shared.max == 244.0);
  // The last two times and every second row are left out.
  data::StatisticsOptions options;
  options.weights = {{1, 1, 1, 0, 0}, std::vector<double>(700, 1.0), {}};
  for (std::size_t r = 1; r < 700; r += 2) options.weights[1][r] = 0.0;
  const Moments part = data::statistics(*reader, "array", ranks, options);
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t r = 0; r < 700; r += 2)
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t i = (t * rows + r) * columns + c;
        if (i % 1001 == 0) continue;
        ++count;
        sum += static_cast<double>(i % 977) * 0.25;
      }
  CHECK(part.count == count);
  CHECK(part.mean == Approx(sum / static_cast<double>(count)).epsilon(1e-13));
  options.weights = {{1}, {}, {}};
  CHECK_THROWS_AS(data::statistics(*reader, "array", ranks, options), UsageError);
  options.weights = {std::vector<double>(5, 0.0), {}, {}};
  CHECK_THROWS_AS(data::statistics(*reader, "array", ranks, options), DataError);
}

TEST_CASE("fields of NumPy and other files are windows like those of NetCDF") {
  const io::Collective ranks = world();
  const test::SharedDir dir(ranks);
  if (ranks.rank == 0) {
    std::vector<float> values(3 * 4 * 6);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    test::write_file(dir / "a.npy", npy(values, "(3, 4, 6)"));
  }
  ranks.barrier();
  const data::GridField field(
      {.path = dir / "a.npy", .domain_dims = 2, .multiple = 2, .periodic = {"dim_2"}});
  CHECK(field.fields() == 3);
  CHECK(field.shape() == Shape{4, 6});
  float out[4];
  field.read(1, Box({3, -2}, {4, 2}), View::dense(out, DType::kFloat32, {1, 4}));
  CHECK((out[0] == 46 && out[1] == 47 && out[2] == 42 && out[3] == 43));
}

TEST_CASE("samples made ahead come in order, whatever is ahead") {
  const io::Collective ranks = world();
  for (const int ahead : {0, 1, 3}) {
    std::atomic<int> made = 0;
    std::atomic<bool> crossed = false;
    const auto main_thread = std::this_thread::get_id();
    {
      data::Prefetcher<std::vector<std::int64_t>> items(
          [&](std::int64_t i) {
            ++made;
            if ((std::this_thread::get_id() == main_thread) != (ahead == 0)) crossed = true;
            return std::vector<std::int64_t>{i, i * i};
          },
          4, 40, ahead, ranks);
      for (std::int64_t i = 4; i < 20; ++i) {
        CHECK(items.next() == std::vector<std::int64_t>{i, i * i});
        // The one in the thread's hands, and those in the queue.
        CHECK(made <= i - 4 + 1 + ahead + 1);
      }
    }
    CHECK_FALSE(crossed);
  }
  data::Prefetcher<int> last([](std::int64_t i) { return static_cast<int>(i); }, 0, 1, 2, ranks);
  CHECK(last.next() == 0);
  CHECK_THROWS_AS(last.next(), UsageError);
  CHECK_THROWS_AS(data::Prefetcher<int>([](std::int64_t) { return 0; }, 0, 1, -1), UsageError);
}

TEST_CASE("an error while a sample is made on one rank is that of all ranks") {
  const io::Collective ranks = world();
  for (const int ahead : {0, 2}) {
    data::Prefetcher<int> items(
        [&](std::int64_t i) {
          if (i == 3 && ranks.rank == ranks.size - 1) throw DataError("sample 3 is damaged");
          return static_cast<int>(i);
        },
        0, 10, ahead, ranks);
    for (int i = 0; i < 3; ++i) CHECK(items.next() == i);
    CHECK_THROWS_AS(items.next(), DataError);
  }
}

TEST_CASE("parts of a crop, mirrored and turned, are parts of the same sample") {
  // The field holds its own index, so a sample says where it comes from.
  for (const Shape& shape : {Shape{9}, Shape{8, 11}, Shape{6, 7, 5}}) {
    const int dims = shape.size();
    const Shape crop = Dims::filled(dims, 4);
    const std::vector<bool> periodic = {true, false, false};
    Augmentation augment({.shape = shape,
                          .crop = crop,
                          .flips = true,
                          .turns = true,
                          .periodic = {periodic.begin(), periodic.begin() + dims},
                          .seed = 7});
    const auto read = [&](const Box& source, const View& into) {
      REQUIRE(into.shape == source.shape());
      for_each_index(source, [&](const Index& i) {
        double at = 0;
        std::int64_t offset = 0;
        for (int d = 0; d < dims; ++d) {
          REQUIRE((i[d] >= 0 && (d == 0 || i[d] < shape[d])));
          at = at * 100 + static_cast<double>(i[d] % shape[d]);
          offset += (i[d] - source.lo[d]) * into.strides[d];
        }
        into.as<double>()[offset] = at;
      });
    };
    std::mt19937_64 random(11);
    std::set<std::string> kinds;
    for (std::int64_t sample = 0; sample < 400; ++sample) {
      const Augmentation::Choice c = augment.choice(sample % 3, sample);
      std::string kind;
      for (int d = 0; d < dims; ++d)
        kind += str(c.to[d], c.mirrored[static_cast<std::size_t>(d)] ? "-" : "+");
      kinds.insert(kind);
      std::vector<double> whole(static_cast<std::size_t>(crop.product()));
      const View all = View::dense(whole.data(), DType::kFloat64, crop);
      augment.read(c, Box::whole(crop), all, read);
      // By the definition.
      std::size_t next = 0;
      for_each_index(Box::whole(crop), [&](const Index& i) {
        double at = 0;
        for (int d = 0; d < dims; ++d) {
          const std::int64_t k = i[static_cast<int>(c.to[d])];
          const std::int64_t j = c.start[d] + (c.mirrored[static_cast<std::size_t>(d)] ? 3 - k : k);
          at = at * 100 + static_cast<double>(j % shape[d]);
        }
        REQUIRE(whole[next++] == at);
      });
      Box part = Box::whole(crop);
      for (int d = 0; d < dims; ++d) {
        const auto a = static_cast<std::int64_t>(random() % 5),
                   b = static_cast<std::int64_t>(random() % 5);
        part.set(d, {std::min(a, b), std::max(a, b)});
      }
      if (part.empty()) continue;
      std::vector<double> some(static_cast<std::size_t>(part.volume()));
      augment.read(c, part, View::dense(some.data(), DType::kFloat64, part.shape()), read);
      next = 0;
      for_each_index(part, [&](const Index& i) {
        std::int64_t at = 0;
        for (int d = 0; d < dims; ++d) at = at * 4 + i[d];
        REQUIRE(some[next++] == whole[static_cast<std::size_t>(at)]);
      });
    }
    // All signed permutations: 2, 8, 48.
    CHECK(kinds.size() == (dims == 1 ? 2u : dims == 2 ? 8u : 48u));
  }
}

TEST_CASE("turns without flips are rotations, and draws depend on epoch and sample") {
  for (const int dims : {2, 3}) {
    const Augmentation turn({.shape = Dims::filled(dims, 4), .turns = true});
    std::map<std::string, int> kinds;
    for (std::int64_t sample = 0; sample < 2400; ++sample) {
      const auto c = turn.choice(0, sample);
      // The determinant of the signed permutation.
      int sign = 1;
      std::string kind;
      for (int a = 0; a < dims; ++a) {
        if (c.mirrored[static_cast<std::size_t>(a)]) sign = -sign;
        for (int b = a + 1; b < dims; ++b)
          if (c.to[a] > c.to[b]) sign = -sign;
        kind += str(c.to[a], c.mirrored[static_cast<std::size_t>(a)]);
      }
      REQUIRE(sign == 1);
      ++kinds[kind];
    }
    const std::size_t expected = dims == 2 ? 4 : 24;
    CHECK(kinds.size() == expected);
    for (const auto& [kind, count] : kinds) CHECK(count > 2400 / static_cast<int>(expected) / 2);
  }
  const Augmentation crop({.shape = {1000, 1000}, .crop = {10, 10}, .seed = 1});
  const auto first = crop.choice(0, 5);
  CHECK(crop.choice(0, 5).start == first.start);
  CHECK_FALSE(crop.choice(1, 5).start == first.start);
  CHECK_FALSE(crop.choice(0, 6).start == first.start);
  CHECK_FALSE(
      Augmentation({.shape = {1000, 1000}, .crop = {10, 10}, .seed = 2}).choice(0, 5).start ==
      first.start);
  CHECK(first.mirrored == std::vector<bool>{false, false});
  CHECK_THROWS_AS(Augmentation({.shape = {4, 4}, .crop = {5, 4}}), UsageError);
  CHECK_THROWS_AS(Augmentation({.shape = {4, 6}, .turns = true}), UsageError);
  CHECK_THROWS_AS(Augmentation({.shape = {4, 6}, .crop = {2}}), UsageError);
}
