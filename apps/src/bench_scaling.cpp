#include "bench_scaling.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>
#include <thread>

#include "bench_mesh.hpp"
#include "bench_models.hpp"
#include "mesh_option.hpp"
#include "nodes.hpp"

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;

struct Setup {
  BenchCase what;
  std::string size;
};

Setup set_up(const ScalingOptions& o, const BenchEntry& model) {
  const Dims size = parse_size(o.size);
  if (size.size() > model.dims) {
    throw UsageError(str("bench: ", model.name, " has at most ", model.dims,
                         " domain dimensions, the size ", o.size, " has ", size.size(), "."));
  }
  Setup setup;
  BenchCase& c = setup.what;
  // Weak: the domain grows alike in all dimensions, whatever one rank's part looks like.
  const Dims cut = o.weak ? Dims::filled(size.size(), std::int64_t{1} << 20) : size;
  c.mesh = o.mesh.empty() ? Mesh::of(processes_by_node(), choose_axes(cut, process().count))
                          : parse_mesh(o.mesh);
  c.domain = size;
  c.batch = o.batch;
  c.width = o.width > 0 ? o.width : model.width;
  c.dtype = o.precision == "f64" ? DType::kFloat64 : DType::kFloat32;
  if (o.weak) {
    int next = 0;
    for (int a = 0; a < c.mesh.axis_count(); ++a) {
      if (c.mesh.axis_name(a) == "data") {
        c.batch *= c.mesh.axis_size(a);
      } else if (next < c.domain.size()) {
        c.domain[next++] *= c.mesh.axis_size(a);
      }
    }
  }
  setup.size = size_text(size);
  return setup;
}

void combine(const Mesh& mesh, std::vector<double>& values, ReduceOp op) {
  if (mesh.size() == 1) return;
  parallel::all_reduce(parallel::Group::of(mesh, mesh.all_axes()), values.data(),
                       static_cast<std::int64_t>(values.size()), DType::kFloat64, op,
                       {"benchmark", {}, {}})
      .wait();
}

/// Names under which exposed_by_axes() can book, those of single axes first.
std::vector<std::string> axis_names(const Mesh& mesh) {
  std::vector<std::string> names;
  for (int size = 1; size <= mesh.axis_count(); ++size) {
    for (AxisMask axes = 1; axes <= mesh.all_axes(); ++axes) {
      if (__builtin_popcount(axes) != size) continue;
      names.push_back(axes_name(mesh, axes));
    }
  }
  names.push_back(axes_name(mesh, 0));
  return names;
}

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// What the timed steps took here.
struct Measured {
  std::vector<double> seconds;
  double cpu = 0.0;
  double wait_cpu = 0.0;
  double wait = 0.0;
  std::map<std::string, double> exposed;
  parallel::CommCounters sent;
  double loss = 0.0;
};

Measured measure(BenchModel& model, const ScalingOptions& o, const Mesh& mesh) {
  for (std::int64_t i = 0; i < o.warmup; ++i) model.step();
  Measured m;
  MemoryPool::of({}).reset_peak();
  const parallel::CommCounters before = parallel::comm_stats().total();
  Profile profile(Profile::Scope::kCommunication);
  profile.start();
  const double cpu = process_cpu_seconds();
  for (std::int64_t i = 0; i < o.steps; ++i) {
    const auto start = Clock::now();
    m.loss = model.step();
    m.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  m.cpu = process_cpu_seconds() - cpu;
  profile.stop();
  m.sent = parallel::comm_stats().total();
  m.sent.bytes -= before.bytes;
  m.sent.messages -= before.messages;
  m.exposed = exposed_by_axes(profile, mesh);
  for (const ProfileEvent& e : profile.events()) {
    if (e.kind != ProfileKind::kWait) continue;
    m.wait += e.seconds;
    m.wait_cpu += e.cpu_seconds;
  }
  return m;
}

void append(const std::string& path, const std::string& line) {
  std::ofstream out(path, std::ios::app);
  out << line << '\n';
  out.close();
  if (!out) throw IoError(str("bench: ", path, " cannot be written. Choose another file."));
}

}  // namespace

int bench_scaling(const ScalingOptions& o) {
  const BenchEntry entry = bench_entry(o.model);
  const Setup setup = set_up(o, entry);
  const BenchCase& c = setup.what;
  const Mesh& mesh = c.mesh;
  const std::unique_ptr<BenchModel> model = entry.make(c);
  Measured m = measure(*model, o, mesh);
  const auto steps = static_cast<double>(o.steps);

  combine(mesh, m.seconds, ReduceOp::kMax);
  std::vector<double> most = {static_cast<double>(MemoryPool::of({}).stats().peak_bytes), m.wait};
  combine(mesh, most, ReduceOp::kMax);
  const std::vector<std::string> names = axis_names(mesh);
  std::vector<double> sums = {m.cpu, m.wait_cpu, m.wait, static_cast<double>(m.sent.bytes),
                              static_cast<double>(m.sent.messages)};
  for (const std::string& name : names) sums.push_back(m.exposed[name]);
  combine(mesh, sums, ReduceOp::kSum);

  std::vector<double> sorted = m.seconds;
  std::sort(sorted.begin(), sorted.end());
  const double ranks = mesh.size();
  nlohmann::ordered_json exposed;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (sums[5 + i] > 0.0) exposed[names[i]] = sums[5 + i] / ranks / steps;
  const std::int64_t voxels = c.domain.product() * c.batch * entry.points;
  const nlohmann::ordered_json line = {
      {"benchmark", "scaling"},
      {"model", o.model},
      {"mode", o.weak ? "weak" : "strong"},
      {"size", setup.size},
      {"domain", size_text(c.domain)},
      {"batch", c.batch},
      {"width", c.width},
      {"precision", o.precision},
      {"parameters", model->parameter_count()},
      {"ranks", mesh.size()},
      {"nodes", node_count()},
      {"mesh", mesh.axis_count() > 0 ? mesh.str() : "of one"},
      {"threads", thread_count()},
      {"cores_per_node", std::thread::hardware_concurrency()},
      {"steps", o.steps},
      {"seconds", quantile(sorted, 0.5)},
      {"seconds_low", quantile(sorted, 0.25)},
      {"seconds_high", quantile(sorted, 0.75)},
      {"voxels", voxels},
      {"exposed_seconds", sums[2] / ranks / steps},
      {"exposed_seconds_most", most[1] / steps},
      {"exposed", exposed.is_null() ? nlohmann::ordered_json::object() : exposed},
      {"cpu_seconds", sums[0] / steps},
      {"wait_cpu_seconds", sums[1] / steps},
      {"sent_bytes", static_cast<std::int64_t>(sums[3] / steps + 0.5)},
      {"messages", static_cast<std::int64_t>(sums[4] / steps + 0.5)},
      {"peak_bytes", static_cast<std::int64_t>(most[0])},
      {"loss", m.loss},
      {"version", TESSERA_VERSION}};
  nn::collective(mesh).together([&] {
    if (mesh.rank() != 0) return;
    std::cout << line.dump() << std::endl;
    if (!o.out.empty()) append(o.out, line.dump());
  });

  if (!o.profile.empty()) {
    // Beside the measurement, so that recording ops does not count.
    const std::int64_t total = o.profile_steps + 2;
    StepProfiler profiler({.dir = o.profile, .steps = o.profile_steps}, mesh, total);
    for (std::int64_t i = 0; i < total; ++i) {
      profiler.begin_step();
      model->step();
      profiler.end_step();
    }
    profiler.finish();
  }
  return 0;
}

}  // namespace tessera::app
