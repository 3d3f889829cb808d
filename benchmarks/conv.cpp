// Convolutions on dense channels-last f32 tensors, GFLOP/s of forward, input gradient and weight
// gradient, beside oneDNN (channels-last activations, weights in the format it likes best, packed
// outside the timing). Usage: bench_conv [threads] [case substring]
#include <omp.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <tessera/core/threads.hpp>

#include "onednn_conv.hpp"

namespace {

namespace bench = tessera::bench;

const bench::ConvCase kCases[] = {
    {"2d 3x3 64->64 256^2", {256, 256}, 1, 64, 64, 3, 1, 1},
    {"2d 3x3 128->128 64^2", {64, 64}, 1, 128, 128, 3, 1, 1},
    {"2d 3x3 32->32 8^2 b4", {8, 8}, 4, 32, 32, 3, 1, 1},
    {"2d 1x1 256->256 64^2", {64, 64}, 1, 256, 256, 1, 1, 1},
    {"2d 3x3/2 64->128 128^2", {128, 128}, 1, 64, 128, 3, 2, 1},
    {"2d 2x2/2 64->128 128^2", {128, 128}, 1, 64, 128, 2, 2, 1},
    {"2d 7x7/2 3->64 224^2", {224, 224}, 1, 3, 64, 7, 2, 1},
    {"2d 16x16/16 3->384 224^2", {224, 224}, 1, 3, 384, 16, 16, 1},
    {"3d 3x3x3 16->16 96^3", {96, 96, 96}, 1, 16, 16, 3, 1, 1},
    {"3d 3x3x3 32->32 64^3", {64, 64, 64}, 1, 32, 32, 3, 1, 1},
    {"3d 3x3x3 64->64 32^3", {32, 32, 32}, 1, 64, 64, 3, 1, 1},
    {"3d 3x3x3 128->128 16^3", {16, 16, 16}, 1, 128, 128, 3, 1, 1},
    {"3d 3x3x3 256->256 8^3", {8, 8, 8}, 1, 256, 256, 3, 1, 1},
    {"3d 3x3x3 48->48 48^3", {48, 48, 48}, 1, 48, 48, 3, 1, 1},
    {"3d 3x3x3 1->16 96^3", {96, 96, 96}, 1, 1, 16, 3, 1, 1},
    {"3d 1x1x1 16->1 96^3", {96, 96, 96}, 1, 16, 1, 1, 1, 1},
    {"2d depthwise 64 256^2", {256, 256}, 1, 64, 64, 3, 1, 64},
    {"2d 3x3 32 groups of 4, 64^2", {64, 64}, 1, 128, 128, 3, 1, 32},
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  tessera::set_thread_count(threads);
  omp_set_num_threads(threads);
  std::printf("%d thread(s); ", threads);
  const bench::ConvSummary sum = bench::print_rates(kCases, argc > 2 ? argv[2] : "");
  if (sum.measured == 0) return 1;
  nlohmann::json line;
  line["benchmark"] = "conv";
  line["value"] = sum.ours;
  line["unit"] = "GFLOP/s, mean";
  line["peer"] = {{"name", "oneDNN"}, {"value", sum.peer}};
  line["ratio"] = sum.ratio;
  std::printf("%s\n", line.dump().c_str());
}
