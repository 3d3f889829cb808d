#include <algorithm>
#include <charconv>
#include <cmath>
#include <tessera/kernels/random.hpp>
#include <tessera/nn/data/segmentation.hpp>

namespace tessera::data {
namespace {

using Part = HeldOutSlabs::Part;

constexpr std::uint64_t kSampleKey = 0x7365676d656e7473ull;  // draws of their own

/// The sizes of a file without leading dimensions of size 1.
Shape grid_of(const Shape& shape) {
  Shape grid = shape;
  while (grid.size() > 1 && grid[0] == 1) grid.erase(0);
  return grid;
}

std::int64_t number(const std::string& text, const std::string& whole) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw UsageError(str("classes: \"", whole,
                         "\" is not a name with labels. Write for example frontal=1-16+19+21-28."));
  return value;
}

std::vector<std::string> cut(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

template <class T>
std::vector<T> read_box(const io::NiftiReader& reader, const Box& box) {
  std::vector<T> values(static_cast<std::size_t>(box.volume()));
  Box in_file = box;
  while (in_file.dims() < reader.header().shape.size()) {
    in_file.lo.insert(0, 0);
    in_file.hi.insert(0, 1);
  }
  reader.read("volume", in_file, View::dense(values.data(), dtype_of<T>, in_file.shape()),
              {.missing = 0.0});
  return values;
}

/// A rank's share of the outermost planes, for a look at all points.
Box share_of(const Shape& grid, const io::Collective& ranks) {
  Box box = Box::whole(grid);
  box.set(0, {grid[0] * ranks.rank / ranks.size, grid[0] * (ranks.rank + 1) / ranks.size});
  return box;
}

/// Mirrored dimensions and start of a sample's crop.
struct Sample {
  Dims start;
  std::vector<bool> mirrored;
};

}  // namespace

bool SegmentClass::contains(std::int64_t label) const {
  return std::any_of(labels.begin(), labels.end(), [&](const auto& range) {
    return range.first <= label && label <= range.second;
  });
}

SegmentClass parse_segment_class(const std::string& text) {
  const std::size_t equals = text.find('=');
  SegmentClass c = {.name = text.substr(0, equals), .labels = {}};
  if (equals == std::string::npos || c.name.empty()) number("", text);
  for (const std::string& range : cut(text.substr(equals + 1), '+')) {
    const std::vector<std::string> ends = cut(range, '-');
    if (ends.size() > 2) number("", text);
    c.labels.emplace_back(number(ends.front(), text), number(ends.back(), text));
  }
  return c;
}

Part HeldOutSlabs::part(std::int64_t point) const {
  if (dim < 0) return Part::kTraining;
  const std::int64_t from = (every - thickness) / 2;
  const std::int64_t at = ((point - from) % every + every) % every;
  if (at < thickness) return Part::kHeldOut;
  return at < thickness + margin || at >= every - margin ? Part::kMargin : Part::kTraining;
}

std::int64_t HeldOutSlabs::nearest_training(std::int64_t point, std::int64_t size) const {
  for (std::int64_t away = 0; away < size; ++away) {
    if (point - away >= 0 && part(point - away) == Part::kTraining) return point - away;
    if (point + away < size && part(point + away) == Part::kTraining) return point + away;
  }
  return -1;
}

Segmentation::Segmentation(const SegmentationOptions& options, const io::Collective& ranks)
    : options_(options) {
  ranks.together([&] {
    volume_ = std::make_unique<io::NiftiReader>(options_.volume);
    grid_ = grid_of(volume_->header().shape);
    if (grid_.size() > 3)
      throw UsageError(str("data: ", options_.volume, " has ", grid_.size(),
                           " dimensions (1 to 3 are segmented). Take one volume of it."));
    if (options_.labels.empty()) return;
    labels_ = std::make_unique<io::NiftiReader>(options_.labels);
    const Shape labelled = grid_of(labels_->header().shape);
    if (labelled != grid_)
      throw DataError(str("data: ", options_.labels, " labels ", labelled, " points, but ",
                          options_.volume, " has ", grid_, ". Give labels of the same grid."));
  });
  box_ = Box::whole(grid_);
  const HeldOutSlabs& s = options_.slabs;
  if (s.dim >= dims() ||
      (s.dim >= 0 && (s.thickness < 1 || s.margin < 0 || s.every <= s.thickness + 2 * s.margin)))
    throw UsageError(str("data: slabs of ", s.thickness, " points out of ", s.every,
                         " with margins of ", s.margin,
                         " leave nothing to train on. Hold out fewer, or thinner ones."));
  look(ranks);
  if (!options_.labels.empty()) count_classes(ranks);
  sample_ = shape();
  for (int d = 0; d < options_.crop.size(); ++d)
    sample_[d] = std::min(sample_[d], std::max<std::int64_t>(options_.crop[d], 1));
  if (s.dim >= 0 && sample_[s.dim] < std::min(s.thickness + 2 * s.margin + 1, shape()[s.dim]))
    throw UsageError(str("data: a crop of ", sample_[s.dim], " points may lie in a slab of ",
                         s.thickness, " with margins of ", s.margin,
                         " altogether. Take larger crops, or thinner slabs."));
}

/// The box of what is not 0, and the scale: each rank looks at some of the outermost planes.
void Segmentation::look(const io::Collective& ranks) {
  const Shape& grid = grid_;
  const Box mine = share_of(grid, ranks);
  std::vector<float> values;
  ranks.together([&] { values = read_box<float>(*volume_, mine); });
  if (options_.trim) {
    std::vector<std::vector<std::int64_t>> seen;  // per dimension and plane: more than 0
    for (const std::int64_t n : grid) seen.emplace_back(static_cast<std::size_t>(n), 0);
    std::size_t at = 0;
    for_each_index(mine, [&](const Index& i) {
      if (values[at++] == 0.0f) return;
      for (int d = 0; d < grid.size(); ++d)
        seen[static_cast<std::size_t>(d)][static_cast<std::size_t>(i[d])] = 1;
    });
    for (int d = 0; d < grid.size(); ++d) {
      std::vector<std::int64_t>& planes = seen[static_cast<std::size_t>(d)];
      if (ranks.size > 1) ranks.sum(planes);
      const auto full = [](std::int64_t n) { return n > 0; };
      const auto first = std::find_if(planes.begin(), planes.end(), full);
      if (first == planes.end())
        throw DataError(str("data: all of ", options_.volume, " is 0. Give another volume."));
      const auto last = std::find_if(planes.rbegin(), planes.rend(), full);
      box_.set(d, {first - planes.begin(), planes.rend() - last});
    }
  }
  if (options_.scale) {
    scale_ = *options_.scale;
    return;
  }
  double count = 0.0, total = 0.0, squares = 0.0;
  std::size_t at = 0;
  const int across = options_.slabs.dim;
  for_each_index(mine, [&](const Index& i) {
    const double v = values[at++];
    if (v == 0.0 || (across >= 0 && part(i[across] - box_.lo[across]) != Part::kTraining)) return;
    count += 1.0;
    total += v;
    squares += v * v;
  });
  const std::vector<double> sums = ranks.total(std::vector<double>{count, total, squares});
  if (sums[0] == 0.0)
    throw DataError(str("data: the training part of ", options_.volume, " is 0."));
  scale_.mean = sums[1] / sums[0];
  scale_.std = std::sqrt(std::max(sums[2] / sums[0] - scale_.mean * scale_.mean, 0.0));
  if (scale_.std == 0.0) scale_.std = 1.0;
}

void Segmentation::count_classes(const io::Collective& ranks) {
  names_ = {"background"};
  for (const SegmentClass& c : options_.classes) names_.push_back(c.name);
  classes_ = static_cast<std::int64_t>(names_.size());
  if (!options_.classes.empty()) return;
  // Each label is its class; how many there are stands in the file alone.
  const Box mine = share_of(grid_, ranks);
  std::int64_t largest = 0;
  ranks.together([&] {
    for (const std::int32_t label : read_box<std::int32_t>(*labels_, mine)) {
      if (label < 0 || label > 1000)
        throw DataError(str("data: label ", label, " in ", options_.labels,
                            ". Without classes labels are 0 to 1000: give classes."));
      largest = std::max<std::int64_t>(largest, label);
    }
  });
  std::vector<std::int64_t> found(1001, 0);
  found[static_cast<std::size_t>(largest)] = 1;
  if (ranks.size > 1) ranks.sum(found);
  for (std::int64_t c = 1000; c > 0; --c) {
    if (found[static_cast<std::size_t>(c)] == 0) continue;
    classes_ = c + 1;
    break;
  }
  for (std::int64_t c = 1; c < classes_; ++c) names_.push_back(std::to_string(c));
}

std::int64_t Segmentation::bytes_read() const {
  return volume_->bytes_read() + (labels_ ? labels_->bytes_read() : 0);
}

Layout Segmentation::target_layout(const Layout& input) {
  return input.without_dim(input.dims() - 1);
}

Part Segmentation::part(std::int64_t plane) const { return options_.slabs.part(plane); }

Box Segmentation::in_file(const Box& box) const {
  Box in = box;
  for (int d = 0; d < dims(); ++d) in.set(d, {box.lo[d] + box_.lo[d], box.hi[d] + box_.lo[d]});
  return in;
}

std::vector<float> Segmentation::read_intensities(const Box& box) const {
  return read_box<float>(*volume_, in_file(box));
}

std::vector<std::int32_t> Segmentation::read_classes(const Box& box) const {
  if (!labels_) throw UsageError("data: there are no labels. Give a file with them.");
  std::vector<std::int32_t> values = read_box<std::int32_t>(*labels_, in_file(box));
  if (options_.classes.empty()) return values;
  const auto class_of = [&](std::int32_t label) {
    for (std::size_t c = 0; c < options_.classes.size(); ++c)
      if (options_.classes[c].contains(label)) return static_cast<std::int32_t>(c + 1);
    return std::int32_t{0};
  };
  std::int32_t last = 0;  // labels come in runs
  std::int32_t last_class = class_of(last);
  for (std::int32_t& v : values) {
    if (v != last) {
      last = v;
      last_class = class_of(v);
    }
    v = last_class;
  }
  return values;
}

/// Has the points of `box` in memory from now on.
void Segmentation::keep(const Box& box) {
  if (kept_.dims() > 0 && kept_.contains(box)) return;
  intensities_ = read_intensities(box);
  if (labels_) targets_ = read_classes(box);
  kept_ = box;
}

SegmentationBatch Segmentation::batch(std::int64_t first, const Layout& input, DType dtype) {
  return load(input, dtype, first);
}

SegmentationBatch Segmentation::whole(const Layout& input, DType dtype) {
  return load(input, dtype, std::nullopt);
}

SegmentationBatch Segmentation::load(const Layout& input,
                                     DType dtype,
                                     std::optional<std::int64_t> first) {
  const bool training = first.has_value();
  const Shape size = training ? sample_ : shape();
  Shape expected = size;
  expected.insert(0, training && input.dims() > 0 ? input.shape()[0] : 1);
  expected.push_back(input_channels());
  if (input.shape() != expected)
    throw ShapeError(
        str("data: an input of shape ", input.shape(), " for samples of ", expected, "."));
  SegmentationBatch batch;
  batch.input = Tensor::empty(input, dtype);
  if (labels_) batch.target = Tensor::empty(target_layout(input), DType::kInt32);
  const Box& part = input.local_box();
  if (part.empty()) return batch;

  const auto draw = [&](std::int64_t sample) {
    constexpr int kWords = 12;  // a start and a mirror image per dimension, two words each
    std::int64_t words[kWords];
    kernels::random_bits(
        {options_.seed ^ kSampleKey, static_cast<std::uint64_t>(sample)},
        {View::dense(words, DType::kInt64, {kWords}), Box({0}, {kWords}), {kWords}});
    Sample s;
    for (int d = 0; d < dims(); ++d) {
      const std::int64_t room = size.size() > d ? shape()[d] - size[d] + 1 : 1;
      s.start.push_back(words[4 * d] % room);
      s.mirrored.push_back(words[4 * d + 2] % 2 == 1 &&
                           std::find(options_.mirrored.begin(), options_.mirrored.end(), d) !=
                               options_.mirrored.end());
    }
    return s;
  };
  // The whole length of dimensions along which samples move or are mirrored.
  Box needed = part;
  needed.lo.erase(0);
  needed.hi.erase(0);
  needed.lo.resize(dims());
  needed.hi.resize(dims());
  for (int d = 0; d < dims(); ++d) {
    const bool mirror =
        std::find(options_.mirrored.begin(), options_.mirrored.end(), d) != options_.mirrored.end();
    if (training && (mirror || size[d] < shape()[d])) needed.set(d, {0, shape()[d]});
  }
  keep(needed);

  const Strides strides = row_major(kept_.shape());
  // What each index of the part stands for, by dimension.
  struct Along {
    std::vector<std::int64_t> offset;  // among those kept
    std::vector<float> coordinate;
    std::vector<bool> counts;
  };
  std::vector<Along> along(static_cast<std::size_t>(dims()));
  const auto prepare = [&](const Sample& sample) {
    for (int d = 0; d < dims(); ++d) {
      Along& a = along[static_cast<std::size_t>(d)];
      a = {};
      const std::int64_t n = shape()[d];
      const double middle = 0.5 * static_cast<double>(n - 1);
      for (std::int64_t i = part.lo[d + 1]; i < part.hi[d + 1]; ++i) {
        const std::int64_t frame = sample.start[d] + i;
        const std::int64_t point =
            sample.mirrored[static_cast<std::size_t>(d)] ? n - 1 - frame : frame;
        a.offset.push_back((point - kept_.lo[d]) * strides[d]);
        // Where the network believes to be: in the mirrored volume.
        a.coordinate.push_back(
            n > 1 ? static_cast<float>((static_cast<double>(frame) - middle) / middle) : 0.0f);
        a.counts.push_back(!training || d != options_.slabs.dim ||
                           this->part(point) == Part::kTraining);
      }
    }
  };
  const View to = batch.input.mutable_local();  // dense
  std::int32_t* target = labels_ ? batch.target.mutable_local().as<std::int32_t>() : nullptr;
  const int last = dims() - 1;
  const Along& inner = along[static_cast<std::size_t>(last)];
  const std::int64_t row = part[last + 1].size();
  Box outer;
  for (int d = 0; d < last; ++d) {
    outer.lo.push_back(0);
    outer.hi.push_back(part[d + 1].size());
  }
  visit_floating("segmentation", dtype, [&]<class T>() {
    T* out = to.as<T>();
    for (std::int64_t n = part.lo[0]; n < part.hi[0]; ++n) {
      prepare(training ? draw(*first + n)
                       : Sample{.start = Dims::filled(dims(), 0),
                                .mirrored = std::vector<bool>(along.size(), false)});
      for_each_index(outer, [&](const Index& i) {
        std::int64_t offset = 0;
        bool counts = true;
        for (int d = 0; d < last; ++d) {
          const Along& a = along[static_cast<std::size_t>(d)];
          offset += a.offset[static_cast<std::size_t>(i[d])];
          counts = counts && a.counts[static_cast<std::size_t>(i[d])];
        }
        for (std::size_t x = 0; x < static_cast<std::size_t>(row); ++x) {
          const auto source = static_cast<std::size_t>(offset + inner.offset[x]);
          *out++ = T(static_cast<float>((intensities_[source] - scale_.mean) / scale_.std));
          if (options_.coordinate_channels) {
            for (int d = 0; d < last; ++d)
              *out++ =
                  T(along[static_cast<std::size_t>(d)].coordinate[static_cast<std::size_t>(i[d])]);
            *out++ = T(inner.coordinate[x]);
          }
          if (target != nullptr) *target++ = counts && inner.counts[x] ? targets_[source] : -1;
        }
      });
    }
  });
  return batch;
}

}  // namespace tessera::data
