// ranks: none
#include <nlohmann/json.hpp>
#include <tessera/nn/io/nifti.hpp>

#include "program.hpp"

// Segmentation of a volume: made here, three bodies in the dark, whose brightness tells them apart.
namespace tessera::test {
namespace {

const Shape kGrid = {19, 30, 17};  // z, y, x
constexpr io::NiftiAffine kAffine = {{{2, 0, 0, -17}, {0, 2, 0, -30}, {0, 0, 2.5, 4}}};

/// 0 outside; 3, 4, 7: an egg in which a ball lies, and a rod through the ball.
int label_at(const Index& i) {
  const double z = double(i[0]) - 9.0, y = double(i[1]) - 14.5, x = double(i[2]) - 8.0;
  if (z * z / 64 + y * y / 196 + x * x / 49 > 1.0) return 0;
  if (z * z + x * x < 5.0) return 7;
  return z * z + y * y / 4 + x * x < 25.0 ? 4 : 3;
}

void write_volumes(const TemporaryFolder& at) {
  std::vector<double> light, labels;
  for_each_index(Box::whole(kGrid), [&](const Index& i) {
    const int label = label_at(i);
    labels.push_back(label);
    const double texture = std::sin(1.7 * double(i[0]) + 2.1 * double(i[1]) + 0.9 * double(i[2]));
    light.push_back(label == 0 ? 0.0 : 10.0 * label + 3.0 * texture);
  });
  const auto write = [&](const std::string& name, DType dtype, const std::vector<double>& values) {
    io::NiftiWriter writer(at / name, {.shape = kGrid, .dtype = dtype, .affine = kAffine});
    std::vector<std::int64_t> whole(values.begin(), values.end());
    const View real = View::dense(const_cast<double*>(values.data()), DType::kFloat64, kGrid);
    writer.write_box(Box::whole(kGrid),
                     is_floating(dtype) ? real : View::dense(whole.data(), DType::kInt64, kGrid));
    writer.commit();
  };
  write("light.nii", DType::kFloat32, light);
  write("labels.nii", DType::kUInt8, labels);
}

Words training(const TemporaryFolder& at, const std::string& out, const Words& more = {}) {
  Words words = {"train",       "unet",
                 "--task",      "segment",
                 "--data",      at / "light.nii",
                 "--labels",    at / "labels.nii",
                 "--classes",   "egg=3,core=4+7",
                 "--slabs",     "5,14,1",
                 "--mirror",    "x",
                 "--base",      "4",
                 "--blocks",    "1",
                 "--batch",     "1",
                 "--lr",        "1e-2",
                 "--precision", "f64",
                 "--steps",     "30",
                 "--warmup",    "0",
                 "--final-lr",  "1e-2",
                 "--ema",       "0",
                 "--out",       at / out};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json dice_of(const TemporaryFolder& at, const std::string& run) {
  return nlohmann::json::parse(read_file(at / run + "/evaluation.json"))["dice"];
}

std::vector<double> volume_of(const std::string& path) {
  const io::NiftiReader reader(path);
  std::vector<double> values(static_cast<std::size_t>(reader.header().shape.product()));
  reader.read(Box::whole(reader.header().shape),
              View::dense(values.data(), DType::kFloat64, reader.header().shape));
  return values;
}

}  // namespace

TEST_CASE("a volume is segmented alike on any mesh, resumes, is scored and written") {
  const TemporaryFolder at;
  write_volumes(at);
  const auto trains = [&](int ranks, const std::string& run, const Words& more) {
    const Outcome o = tessera(at, ranks, training(at, run, more));
    INFO(o.output);
    REQUIRE(o.code == 0);
    return losses(at, run);
  };
  const auto scores = [&](int ranks, const std::string& run, const Words& more) {
    Words words = {"evaluate", at / run};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = tessera(at, ranks, words);
    INFO(o.output);
    REQUIRE(o.code == 0);
    for (const char* name : {"background", "egg", "core", "mean of all", "nearest plane"})
      CHECK(o.says(name));
    return dice_of(at, run);
  };
  const std::vector<double> one = trains(0, "one", {});
  CHECK(one.back() < 0.5 * one.front());
  const nlohmann::json dice = scores(0, "one", {});
  CHECK(dice["model"]["mean of all"] > 0.85);
  CHECK(dice["model"]["mean of all"] > dice["nearest_plane"]["mean of all"].get<double>() + 0.02);
  CHECK(std::filesystem::exists(at / "one/prediction.png"));
  // The whole volume in one sample, split along z, along y, along the mirrored x.
  for (const std::string mesh : {"h=2", "h=1,w=2", "a=1,b=1,c=2"}) {
    const std::vector<double> two = trains(2, mesh, {"--mesh", mesh});
    REQUIRE(two.size() == one.size());
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-6));
    const nlohmann::json other = scores(2, mesh, {"--mesh", "h=1,w=2"});
    for (const auto& [name, value] : dice["model"].items())
      CHECK(other["model"][name].get<double>() == Approx(value.get<double>()).margin(1e-6));
    CHECK(other["nearest_plane"] == dice["nearest_plane"]);
  }

  trains(0, "parts", {"--steps", "11"});
  REQUIRE(
      tessera(at, 0, {"train", "unet", "--resume", "--steps", "30", "--out", at / "parts"}).code ==
      0);
  CHECK(losses(at, "parts") == one);

  REQUIRE(tessera(at, 0, {"predict", at / "one", "--output", at / "a.nii"}).code == 0);
  REQUIRE(
      tessera(at, 4, {"predict", at / "one", "--output", at / "b.nii", "--mesh", "h=2,w=2"}).code ==
      0);
  const std::vector<double> predicted = volume_of(at / "a.nii");
  CHECK(predicted == volume_of(at / "b.nii"));
  const io::NiftiReader written(at / "a.nii");
  CHECK(written.header().shape == kGrid);
  CHECK(written.header().affine == kAffine);
  CHECK(written.header().type == io::StoredType::kUInt8);
  double right = 0.0;
  std::size_t point = 0;
  for_each_index(Box::whole(kGrid), [&](const Index& i) {
    const int label = label_at(i);
    right += predicted[point++] == (label == 3 ? 1 : label == 0 ? 0 : 2) ? 1.0 : 0.0;
  });
  CHECK(right > 0.95 * static_cast<double>(kGrid.product()));
  CHECK(std::filesystem::exists(at / "a.png"));
}

TEST_CASE("crops, patches, attention, all labels as classes; other models segment, too") {
  const TemporaryFolder at;
  write_volumes(at);
  const auto alike = [&](const std::string& name, const Words& words) {
    Words alone = words;
    alone.insert(alone.end(), {"--out", at / name});
    const Outcome a = tessera(at, 0, alone);
    INFO(a.output);
    REQUIRE(a.code == 0);
    Words split = words;
    split.insert(split.end(), {"--out", at / name + "2", "--mesh", "h=1,w=2"});
    const Outcome b = tessera(at, 2, split);
    INFO(b.output);
    REQUIRE(b.code == 0);
    const std::vector<double> one = losses(at, name), two = losses(at, name + "2");
    REQUIRE(one.size() == two.size());
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-6));
    CHECK(one.front() != one.back());
    CHECK(tessera(at, 2, {"evaluate", at / name}).code == 0);
  };
  const auto unet = [&](const Words& more) {
    Words words = training(at, "", more);
    words.insert(words.end(), {"--steps", "4"});
    words.erase(std::find(words.begin(), words.end(), "--out"),
                std::find(words.begin(), words.end(), "--out") + 2);
    return words;
  };
  alike("crops", unet({"--crop", "12", "--batch", "2", "--mirror", "x,z", "--classes", ""}));
  alike("patches", unet({"--patch", "2", "--attention-blocks", "1", "--heads", "2", "--coordinates",
                         "true", "--trim", "false", "--dice", "0"}));
  const auto transformer = [&](const std::string& model, const Words& more) {
    Words words = unet({});
    const auto base = std::find(words.begin(), words.end(), "--base") - words.begin();
    words.resize(static_cast<std::size_t>(base));
    words[1] = model;
    words.insert(words.end(), {"--channels", "16", "--depth", "2", "--heads", "2", "--precision",
                               "f64", "--batch", "1", "--steps", "4"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  alike("vit", transformer("vit", {"--patch", "4"}));
  alike("unetr", transformer("unetr", {"--levels", "2", "--base", "4"}));
  const Outcome compared = tessera(
      at, 2,
      {"compare", "unet", "--task", "segment", "--size", "12x8x9", "--mesh", "h=2", "--base", "4",
       "--classes", "a=1,b=2", "--coordinates", "true", "--precision", "f64"});
  INFO(compared.output);
  CHECK(compared.code == 0);
}

TEST_CASE("settings and files of a segmentation that do not fit are said once") {
  const TemporaryFolder at;
  write_volumes(at);
  const auto refuses = [&](int ranks, const Words& more, int code, const std::string& text) {
    const Outcome o = tessera(at, ranks, training(at, "x", more));
    INFO(o.output);
    CHECK(o.code == code);
    CHECK(o.count(text) == 1);
    std::filesystem::remove_all(at / "x");
  };
  refuses(2, {"--labels", ""}, 2, "--labels");
  refuses(2, {"--classes", "egg"}, 2, "\"egg\" is not a name with labels");
  refuses(0, {"--classes", "egg=3-"}, 2, "is not a name with labels");
  refuses(0, {"--slabs", "5,14"}, 2, "data.slabs: 2 numbers");
  refuses(0, {"--slabs", "5,7,1"}, 2, "leave nothing to train on");
  refuses(2, {"--slabs", "5,14,1", "--crop", "6"}, 2, "a crop of 6 points");
  refuses(0, {"--mirror", "q"}, 2, "axis");
  refuses(2, {"--labels", at / "none.nii"}, 74, "none.nii");
  refuses(2, {"--labels", at.data()}, 65, "does not begin with the header");
  io::NiftiWriter small(at / "small.nii", {.shape = {3, 4, 5}, .dtype = DType::kUInt8});
  std::vector<std::uint8_t> zeros(60, 0);
  small.write_box(Box::whole({3, 4, 5}), View::dense(zeros.data(), DType::kUInt8, {3, 4, 5}));
  small.commit();
  refuses(2, {"--labels", at / "small.nii"}, 65, "Give labels of the same grid");
  refuses(2, {"--data", at / "small.nii", "--labels", at / "small.nii"}, 65, "is 0");
  REQUIRE(tessera(at, 0, training(at, "all", {"--slabs", "", "--steps", "1"})).code == 0);
  const Outcome o = tessera(at, 2, {"evaluate", at / "all"});
  CHECK(o.code == 2);
  CHECK(o.count("Train with --slabs") == 1);
}

}  // namespace tessera::test
