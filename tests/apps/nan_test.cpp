// ranks: none
// `--on-nan`: what a training does with steps whose loss or gradient is not finite.
#include <tessera/nn/io/extxyz.hpp>

#include "program.hpp"

namespace tessera::test {

TEST_CASE("a training that diverges stops with op and layer, or skips so many steps in a row") {
  const TemporaryFolder at;
  const Words diverging = {"--lr", "1e38", "--warmup", "0", "--clip", "0", "--mesh", "h=2"};
  const Outcome stops = tessera(at, 2, train(at, "stops", diverging));
  INFO(stops.output);
  CHECK(stops.code == 70);
  CHECK(stops.count("tessera: ") == 1);
  CHECK(stops.count(" in step 2 (") == 1);
  CHECK(stops.says("made a NaN or infinity from finite inputs in "));
  CHECK(stops.says(", forward"));
  CHECK(stops.says("Parameters are as before the step"));
  CHECK(losses(at, "stops").size() == 1);

  Words skipping = diverging;
  skipping.insert(skipping.end(), {"--on-nan", "skip", "--nan-limit", "3"});
  const Outcome skips = tessera(at, 2, train(at, "skips", skipping));
  INFO(skips.output);
  CHECK(skips.code == 70);
  CHECK(skips.says(" in step 5, and 3 steps before it were left out"));
  const auto counts = io::read_json_lines(at / "skips/metrics.jsonl", {"step", "skipped"});
  CHECK(counts[0] == std::vector<double>{2, 3, 4});
  CHECK(counts[1] == std::vector<double>{1, 2, 3});

  Words all = skipping;
  all.back() = "10";
  const Outcome ends = tessera(at, 2, train(at, "ends", all));
  INFO(ends.output);
  CHECK(ends.code == 0);
  CHECK(ends.says("5 steps were skipped"));
  CHECK(read_file(at / "ends/config.toml").find("on_nan = \"skip\"") != std::string::npos);
  CHECK(tessera(at, 0, train(at, "word", {"--on-nan", "ignore"})).code == 2);
}

TEST_CASE("a potential's training skips the batch with a label that overflows") {
  const TemporaryFolder at;
  std::vector<nn::Structure> all;
  for (int n = 0; n < 8; ++n) {
    nn::Structure s;
    s.species = {8, 1, 1};
    s.positions = {0, 0, 0, 0.9 + 0.02 * n, 0.1, 0, -0.2, 0.95, 0.01 * n};
    s.energy = -10.0 + 0.01 * n;
    s.forces.assign(9, 0.0);
    all.push_back(s);
  }
  io::write_extxyz(at / "valid.xyz", all);
  all[5].forces[0] = 1e200;  // its square is infinite
  io::write_extxyz(at / "train.xyz", all);
  const auto words = [&](const std::string& out, const std::string& on_nan) {
    return Words{"train",
                 "mace",
                 "--train-file",
                 at / "train.xyz",
                 "--valid-file",
                 at / "valid.xyz",
                 "--E0s",
                 "H:-1,O:-2",
                 "--r_max",
                 "3",
                 "--num_channels",
                 "4",
                 "--max-L",
                 "0",
                 "--max-ell",
                 "1",
                 "--correlation",
                 "1",
                 "--radial_MLP",
                 "8",
                 "--batch_size",
                 "2",
                 "--loss",
                 "weighted",
                 "--scaling",
                 "no_scaling",
                 "--max-num-epochs",
                 "2",
                 "--mesh",
                 "data=2",
                 "--on-nan",
                 on_nan,
                 "--out",
                 at / out};
  };
  const Outcome stops = tessera(at, 2, words("stops", "stop"));
  INFO(stops.output);
  CHECK(stops.code == 70);
  CHECK(stops.says("the loss is infinite in step "));
  const Outcome skips = tessera(at, 2, words("skips", "skip"));
  INFO(skips.output);
  CHECK(skips.code == 0);
  CHECK(skips.says("2 steps were skipped"));  // one in each epoch
  CHECK(losses(at, "skips").size() == 8);
}

}  // namespace tessera::test
