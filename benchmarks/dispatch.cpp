// What a call costs beside its arithmetic: a + b on eight floats split over four ranks of a mesh
// (the part of one rank; an addition communicates nothing), forward and recorded for the gradient.
// Beside it PyTorch's a + b from its Python front end, and its DTensor's.
// Usage: bench_dispatch
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/core/layout.hpp>
#include <vector>

#include "measure.hpp"

namespace {

using tessera::Layout;
using tessera::Mesh;
using tessera::Tensor;

template <class F>
double median_nanoseconds(F f) {
  constexpr int kRounds = 41, kCalls = 20000;
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) f();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    times.push_back(spent.count() / kCalls);
  }
  return tessera::bench::median(times);
}

}  // namespace

int main() {
  const Mesh mesh = Mesh::of({0, 1, 2, 3}, {{"h", 2}, {"w", 2}});
  const Layout layout = Layout::make(mesh, {4, 8}, {{{0}, {0, 2, 4}}, {{1}, {0, 4, 8}}});
  const Tensor a = Tensor::full(layout, 1.0);
  const Tensor b = Tensor::full(layout, 2.0);
  const double forward = median_nanoseconds([&] { return tessera::add(a, b); });
  const Tensor leaf = tessera::require_grad(Tensor::full(layout, 1.0));
  const double recorded = median_nanoseconds([&] { return tessera::add(leaf, b); });

  const std::map<std::string, std::string> peer = tessera::bench::peer_results();
  const auto peer_nanoseconds = [&](const char* key) {
    const auto it = peer.find(key);
    return it == peer.end() ? 0.0 : std::stod(it->second) * 1e9;
  };
  const auto row = [](const char* name, double ours, double theirs) {
    std::printf("%-28s %8.0f ns", name, ours);
    if (theirs > 0) std::printf(" %10.0f ns %9.1fx", theirs, theirs / ours);
    std::printf("\n");
  };
  std::printf("a + b, 8 floats per rank         Tessera        PyTorch     ratio\n");
  row("forward", forward, peer_nanoseconds("forward"));
  row("recorded", recorded, peer_nanoseconds("recorded"));
  row("forward, beside DTensor", forward, peer_nanoseconds("decomposed"));
  nlohmann::json line = {
      {"benchmark", "dispatch"},  {"value", forward},          {"unit", "ns"},
      {"peer", nullptr},          {"ratio", nullptr},          {"recorded", recorded},
      {"peer_recorded", nullptr}, {"peer_decomposed", nullptr}};
  if (peer_nanoseconds("forward") > 0) {
    line["peer"] = peer_nanoseconds("forward");
    line["ratio"] = peer_nanoseconds("forward") / forward;
    line["peer_recorded"] = peer_nanoseconds("recorded");
    line["peer_name"] = "PyTorch " + peer.at("version");
    if (peer_nanoseconds("decomposed") > 0)
      line["peer_decomposed"] = peer_nanoseconds("decomposed");
  }
  std::printf("%s\n", line.dump().c_str());
}
