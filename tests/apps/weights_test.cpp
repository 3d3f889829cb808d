// ranks: none
#include <tessera/nn/io/safetensors.hpp>

#include "program.hpp"

// What `tessera weights` does with a run.
namespace tessera::test {
namespace {

std::vector<double> values_of(const io::SafetensorsReader& file, const std::string& name) {
  const Shape& shape = file.entry(name).shape;
  std::vector<double> values(static_cast<std::size_t>(shape.product()));
  file.read_box(name, Box::whole(shape), View::dense(values.data(), DType::kFloat64, shape));
  return values;
}

}  // namespace

TEST_CASE("weights of a run go to another program and come back") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 1, train(at, "run", {"--steps", "2"})).code == 0);
  const std::string theirs = at / "theirs.safetensors";
  Outcome o =
      tessera(at, 2, {"weights", "export", at / "run", theirs, "--names", "unet_diffusers"});
  INFO(o.output);
  REQUIRE(o.code == 0);
  const io::SafetensorsReader ours(at / "run/model.safetensors"), written(theirs);
  CHECK(written.entries().size() == ours.entries().size());
  // [out, height, width, in] here, [out, in, height, width] there.
  const Shape& stem = ours.entry("stem.weight").shape;
  CHECK(written.entry("conv_in.weight").shape == Shape{stem[0], stem[3], stem[1], stem[2]});

  o = tessera(at, 1, {"weights", "list", theirs});
  CHECK(o.code == 0);
  CHECK(o.says("conv_in.weight"));
  CHECK(o.says(std::to_string(written.entries().size()) + " tensors"));
  CHECK(o.says("# format = pt"));

  o = tessera(at, 2,
              {"weights", "import", at / "run", theirs, "--names", "unet_diffusers", "--out",
               at / "again"});
  INFO(o.output);
  REQUIRE(o.code == 0);
  const io::SafetensorsReader again(at / "again/model.safetensors");
  CHECK(again.metadata() == ours.metadata());
  REQUIRE(again.entries().size() == ours.entries().size());
  for (const auto& entry : ours.entries())
    CHECK(values_of(again, entry.name) == values_of(ours, entry.name));
  CHECK(tessera(at, 1, {"evaluate", at / "again"}).code == 0);

  CHECK(tessera(at, 1, {"weights", "import", at / "run", theirs, "--out", at / "b"}).code == 65);
  CHECK(!std::filesystem::exists(at / "b"));
  o = tessera(at, 1, {"weights", "export", at / "run", at / "c", "--names", "unet_difusers"});
  CHECK(o.code == 2);
  CHECK(o.says("Did you mean \"unet_diffusers\"?"));
  CHECK(tessera(at, 1,
                {"weights", "import", at / "run", theirs, "--names", "unet_diffusers", "--out",
                 at / "again"})
            .code == 2);
  CHECK(tessera(at, 1, {"weights", "list", at / "none"}).code == 74);
  CHECK(tessera(at, 1, {"weights", "list", at.data()}).code == 65);
}

}  // namespace tessera::test
