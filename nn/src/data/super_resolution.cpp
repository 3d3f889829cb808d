#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tessera/kernels/random.hpp>
#include <tessera/nn/data/statistics.hpp>
#include <tessera/nn/data/super_resolution.hpp>
#include <tessera/nn/data/upsample.hpp>
#include <utility>

#include "data/draws.hpp"

namespace tessera::data {
namespace {

// Streams of this file's random numbers are those of its own key.
constexpr std::uint64_t kCropKey = 0x63726f7073ull;  // "crops"

SuperResolutionOptions checked(SuperResolutionOptions options) {
  if (options.factor < 1)
    throw UsageError(str("data: factor ", options.factor, ". Use 1 or more."));
  options.field.multiple = options.factor;
  return options;
}

/// Writes row-major values into channel `c` of sample `n` of a local part [N, grid..., C].
void put_channel(const View& local,
                 std::int64_t n,
                 std::int64_t c,
                 const std::vector<double>& values) {
  const int grid = local.dims() - 2;
  Box starts;  // of the rows along the last grid dimension
  for (int d = 0; d < grid; ++d) {
    starts.lo.push_back(0);
    starts.hi.push_back(d + 1 < grid ? local.shape[d + 1] : 1);
  }
  const std::int64_t length = local.shape[grid];
  const std::int64_t stride = local.strides[grid];
  const double* from = values.data();
  visit_dtype(local.dtype, [&]<class T>() {
    for_each_index(starts, [&](const Index& i) {
      std::int64_t offset = n * local.strides[0] + c * local.strides[grid + 1];
      for (int d = 0; d + 1 < grid; ++d) offset += i[d] * local.strides[d + 1];
      T* const to = local.as<T>() + offset;
      for (std::int64_t j = 0; j < length; ++j) {
        if constexpr (std::is_same_v<T, BFloat16>) {
          to[j * stride] = BFloat16(static_cast<float>(from[j]));
        } else {
          to[j * stride] = static_cast<T>(from[j]);
        }
      }
      from += length;
    });
  });
}

}  // namespace

/// What one entry of dimension 0 shows.
struct SuperResolution::Source {
  std::int64_t field;
  Box coarse;
  std::vector<bool> mirrored;
};

SuperResolution::SuperResolution(const SuperResolutionOptions& options,
                                 const io::Collective& collective)
    : options_(checked(options)), field_(options_.field) {
  const std::int64_t f = options_.factor;
  const int dims = field_.dims();
  if (options_.crop.size() != dims)
    throw UsageError(str("data: crop ", options_.crop, " for a field of ", dims, " dimensions."));
  holdout_dim_ = options_.holdout_dim.empty() ? dims - 1 : field_.dim(options_.holdout_dim);
  if (options_.holdout_hi > options_.holdout_lo) {
    const Interval fine = field_.interval(holdout_dim_, options_.holdout_lo, options_.holdout_hi);
    if (fine.empty())
      throw UsageError(str("data: no point has ", field_.dim_name(holdout_dim_), " from ",
                           options_.holdout_lo, " to ", options_.holdout_hi,
                           ". Give the held-out part in the units of the file."));
    holdout_ = {fine.lo / f, (fine.hi + f - 1) / f};
  }
  for (int d = 0; d < dims; ++d) {
    const std::int64_t n = field_.shape()[d] / f;
    const std::int64_t size = options_.crop[d] / f;
    if (options_.crop[d] < f || options_.crop[d] % f != 0 || size > n)
      throw UsageError(str("data: crop of ", options_.crop[d], " points along ", field_.dim_name(d),
                           " of ", field_.shape()[d], " points. Use a multiple of ", f,
                           " that is not larger."));
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 0; i < (field_.periodic(d) ? n : n - size + 1); ++i) {
      bool free = true;
      if (d == holdout_dim_ && !holdout_.empty())
        for (const std::int64_t turn : {std::int64_t{0}, n})
          free = free &&
                 intersect({i, i + size}, {holdout_.lo + turn, holdout_.hi + turn}).empty() &&
                 intersect({i + turn, i + size + turn}, holdout_).empty();
      if (free) starts.push_back(i);
    }
    if (starts.empty())
      throw UsageError(str("data: no crop of ", options_.crop[d], " points along ",
                           field_.dim_name(d),
                           " avoids the held-out part. Use a smaller crop or hold out less."));
    starts_.push_back(std::move(starts));
    if (options_.coordinate_channels && !field_.periodic(d)) coordinate_dims_.push_back(d);
  }
  normalization_ =
      options_.normalization ? *options_.normalization : compute_normalization(collective);
}

Shape SuperResolution::coarse_shape() const {
  Shape shape = field_.shape();
  for (std::int64_t& n : shape) n /= options_.factor;
  return shape;
}

std::int64_t SuperResolution::crops() const {
  std::int64_t count = field_.fields();
  for (const auto& starts : starts_) count *= static_cast<std::int64_t>(starts.size());
  return count;
}

Shape SuperResolution::input_shape(std::int64_t samples) const {
  Shape shape{samples};
  for (const std::int64_t n : options_.crop) shape.push_back(n / options_.factor);
  shape.push_back(input_channels());
  return shape;
}

Layout SuperResolution::fine_layout(const Layout& coarse, std::int64_t channels) const {
  Layout fine = coarse;
  const int last = coarse.dims() - 1;
  for (int d = 1; d < last; ++d) {
    DimSplit split = coarse.split(d);
    for (std::int64_t& bound : split.bounds) bound *= options_.factor;
    fine = fine.with_dim(d, coarse.shape()[d] * options_.factor, split);
  }
  return fine.with_dim(last, channels, {});
}

SuperResolution::Crop SuperResolution::crop(std::int64_t sample) const {
  // Two words for each choice: the field, one start and one mirror image per dimension.
  std::int64_t words[2 * (1 + 2 * kMaxDims)];
  const std::int64_t count = std::size(words);
  kernels::random_bits({options_.seed ^ kCropKey, static_cast<std::uint64_t>(sample)},
                       {View::dense(words, DType::kInt64, {count}), Box({0}, {count}), {count}});
  const std::int64_t* next = words;
  const auto draw = [&](std::int64_t n) {
    next += 2;
    return scaled_draw(next - 2, n);
  };
  Crop result;
  result.field = draw(field_.fields());
  for (int d = 0; d < field_.dims(); ++d) {
    const auto& starts = starts_[static_cast<std::size_t>(d)];
    const std::int64_t start =
        starts[static_cast<std::size_t>(draw(static_cast<std::int64_t>(starts.size())))];
    result.window.lo.push_back(start * options_.factor);
    result.window.hi.push_back(start * options_.factor + options_.crop[d]);
    const bool mirror = draw(2) == 1;
    result.mirrored.push_back(options_.flips && mirror);
  }
  return result;
}

Box SuperResolution::holdout() const {
  if (holdout_.empty()) return Box::whole(Shape::filled(field_.dims(), 0));
  Box box = Box::whole(coarse_shape());
  box.set(holdout_dim_, holdout_);
  return box;
}

SuperResolutionBatch SuperResolution::batch(std::int64_t first,
                                            const Layout& input,
                                            const Layout& target,
                                            DType dtype) const {
  if (input.dims() < 1 || input.shape() != input_shape(input.shape()[0]))
    throw ShapeError(
        str("data: input of shape ", input.shape(), " for crops of ", input_shape(1), "."));
  const auto source_of = [&](std::int64_t n) {
    const Crop c = crop(first + n);
    Box coarse = c.window;
    for (int d = 0; d < coarse.dims(); ++d)
      coarse.set(d, {coarse.lo[d] / options_.factor, coarse.hi[d] / options_.factor});
    return Source{c.field, coarse, c.mirrored};
  };
  return load(source_of, input, target, dtype);
}

SuperResolutionBatch SuperResolution::window(const Box& coarse,
                                             const Layout& input,
                                             const Layout& target,
                                             DType dtype,
                                             std::int64_t field) const {
  Shape shape{1};
  for (const std::int64_t n : coarse.shape()) shape.push_back(n);
  shape.push_back(input_channels());
  if (input.shape() != shape)
    throw ShapeError(str("data: input of shape ", input.shape(), " for the window ", coarse.str(),
                         ", which needs ", shape, "."));
  const Source source{field, coarse,
                      std::vector<bool>(static_cast<std::size_t>(field_.dims()), false)};
  return load([&](std::int64_t) { return source; }, input, target, dtype);
}

SuperResolutionBatch SuperResolution::load(const std::function<Source(std::int64_t)>& source_of,
                                           const Layout& input,
                                           const Layout& target,
                                           DType dtype) const {
  const int dims = field_.dims();
  if (target.shape() != fine_layout(input).shape())
    throw ShapeError(str("data: target of shape ", target.shape(), " for an input of shape ",
                         input.shape(), " needs ", fine_layout(input).shape(), "."));
  for (const Layout* layout : {&input, &target})
    if (layout->partial_axes() != 0 || layout->is_split(dims + 1))
      throw LayoutError(str("data: layout ", layout->str(),
                            " is Partial or splits the channels. Split samples and grid only."));

  SuperResolutionBatch result;
  result.input = Tensor::empty(input, dtype);
  result.target = Tensor::empty(target, dtype);
  if (masked()) result.mask = Tensor::empty(target, DType::kUInt8);

  const auto grid_part = [&](const Box& box) {
    Box part;
    for (int d = 1; d <= dims; ++d) {
      part.lo.push_back(box.lo[d]);
      part.hi.push_back(box.hi[d]);
    }
    return part;
  };
  const Box& in = input.local_box();
  const Box& out = target.local_box();
  const Box coarse = in.empty() ? Box() : grid_part(in);
  Box in_fine = coarse;
  for (int d = 0; d < coarse.dims(); ++d)
    in_fine.set(d, {coarse.lo[d] * options_.factor, coarse.hi[d] * options_.factor});
  const Box out_fine = out.empty() ? Box() : grid_part(out);

  std::vector<double> values;
  for (std::int64_t n = 0; n < input.shape()[0]; ++n) {
    const bool wants_input = !in.empty() && in[0].contains({n, n + 1});
    const bool wants_target = !out.empty() && out[0].contains({n, n + 1});
    if (!wants_input && !wants_target) continue;
    const Source source = source_of(n);
    if (wants_input) {
      read_crop(source, in_fine, values);
      write_input(result.input.mutable_local(), n - in.lo[0], source, coarse, values);
    }
    if (wants_target) {
      if (!wants_input || in_fine != out_fine) read_crop(source, out_fine, values);
      write_target(result, n - out.lo[0], values);
    }
  }
  return result;
}

/// The window `fine` of a crop, in the crop's own coordinates: mirrored as it is shown.
void SuperResolution::read_crop(const Source& source,
                                const Box& fine,
                                std::vector<double>& values) const {
  values.resize(static_cast<std::size_t>(fine.volume()));
  View view = View::dense(values.data(), DType::kFloat64, fine.shape());
  Box window = fine;
  std::int64_t origin = 0;
  for (int d = 0; d < fine.dims(); ++d) {
    const std::int64_t start = source.coarse.lo[d] * options_.factor;
    if (source.mirrored[static_cast<std::size_t>(d)]) {
      const std::int64_t end = source.coarse.hi[d] * options_.factor;
      window.set(d, {end - fine.hi[d], end - fine.lo[d]});
      origin += (view.shape[d] - 1) * view.strides[d];
      view.strides[d] = -view.strides[d];
    } else {
      window.set(d, {start + fine.lo[d], start + fine.hi[d]});
    }
  }
  view.data = values.data() + origin;
  field_.read(source.field, window, view);
}

void SuperResolution::write_input(const View& input,
                                  std::int64_t n,
                                  const Source& source,
                                  const Box& coarse,
                                  std::vector<double>& fine_values) const {
  const Shape shape = coarse.shape();
  Shape fine_shape = shape;
  for (std::int64_t& size : fine_shape) size *= options_.factor;
  std::vector<double> means(static_cast<std::size_t>(shape.product()));
  block_mean(View::dense(fine_values.data(), DType::kFloat64, fine_shape),
             View::dense(means.data(), DType::kFloat64, shape), options_.factor);
  for (double& v : means) v = normalized(v);
  put_channel(input, n, 0, means);

  for (std::size_t k = 0; k < coordinate_dims_.size(); ++k) {
    const int d = coordinate_dims_[k];
    const auto& x = field_.coordinates(d);
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const double range = std::max(*high - *low, std::numeric_limits<double>::min());
    std::vector<double> scaled;
    for (std::int64_t i = coarse.lo[d]; i < coarse.hi[d]; ++i) {
      const std::int64_t block = source.mirrored[static_cast<std::size_t>(d)]
                                     ? source.coarse.hi[d] - 1 - i
                                     : source.coarse.lo[d] + i;
      double sum = 0.0;
      for (std::int64_t j = 0; j < options_.factor; ++j)
        sum += x[static_cast<std::size_t>(block * options_.factor + j)];
      scaled.push_back(2.0 * (sum / static_cast<double>(options_.factor) - *low) / range - 1.0);
    }
    double* next = means.data();
    for_each_index(coarse, [&](const Index& i) {
      *next++ = scaled[static_cast<std::size_t>(i[d] - coarse.lo[d])];
    });
    put_channel(input, n, static_cast<std::int64_t>(k) + 1, means);
  }
}

void SuperResolution::write_target(const SuperResolutionBatch& batch,
                                   std::int64_t n,
                                   const std::vector<double>& fine_values) const {
  std::vector<double> values(fine_values.size());
  std::transform(fine_values.begin(), fine_values.end(), values.begin(),
                 [&](double v) { return normalized(v); });
  put_channel(batch.target.mutable_local(), n, 0, values);
  if (!masked()) return;
  std::transform(fine_values.begin(), fine_values.end(), values.begin(),
                 [](double v) { return std::isnan(v) ? 0.0 : 1.0; });
  put_channel(batch.mask.mutable_local(), n, 0, values);
}

double SuperResolution::normalized(double value) const {
  if (masked() && std::isnan(value)) return 0.0;
  return (value - normalization_.mean) / normalization_.std;
}

Normalization SuperResolution::compute_normalization(const io::Collective& collective) const {
  Shape shape{field_.fields()};
  for (const std::int64_t n : field_.shape()) shape.push_back(n);
  StatisticsOptions options;
  options.weights.resize(static_cast<std::size_t>(shape.size()));
  std::vector<double>& along = options.weights[static_cast<std::size_t>(holdout_dim_) + 1];
  for (std::int64_t i = 0; i < field_.shape()[holdout_dim_]; ++i)
    along.push_back(held_out(i) ? 0.0 : 1.0);
  const Moments moments = statistics(
      str("variable \"", field_.variable().name, "\" of ", field_.path()), shape,
      [&](const Box& box, std::span<double> values) {
        Box grid = Box::whole(field_.shape());
        for (int d = 0; d < grid.dims(); ++d) grid.set(d, box[d + 1]);
        for (std::int64_t f = box.lo[0]; f < box.hi[0]; ++f)
          field_.read(f, grid,
                      View::dense(values.data() + (f - box.lo[0]) * grid.volume(), DType::kFloat64,
                                  grid.shape()));
      },
      collective, options);
  return {moments.mean, moments.std(), moments.missing > 0};
}

bool SuperResolution::held_out(std::int64_t fine) const {
  const std::int64_t n = field_.shape()[holdout_dim_] / options_.factor;
  const std::int64_t i = fine / options_.factor;
  return holdout_.contains({i, i + 1}) || holdout_.contains({i + n, i + n + 1});
}

}  // namespace tessera::data
