#pragma once

#include <tessera/nn/layers.hpp>

/// What models of fields on grids share: how their output relates to their input.
namespace tessera::models {

/// What is added to the output of a network.
enum class InputSkip : std::uint8_t { kNone, kNearest, kLinear, kCubic };

/// How a network's output becomes the field.
struct FieldOutput {
  std::int64_t upscale = 1;  ///< output elements per input element, in each domain dimension
  /// Adds the input (its first channels), interpolated to the output's size.
  InputSkip input_skip = InputSkip::kNone;
  /// Shifts each block of upscale^dims outputs so that its mean is the input element (the additive
  /// constraint layer of Harder et al. 2023).
  bool conserve_means = false;
};

/// The field [N, upscale * domain..., C] from a network's output `y` of that shape and its input
/// `x` [N, domain..., C or more]; `edges` as in nn::upsample.
Tensor finish_field(Tensor y,
                    const Tensor& x,
                    const FieldOutput& options,
                    const std::vector<EdgeRule>& edges);
/// What finish_field() needs of the input: all of it, or its shape, type and layout without
/// channels.
Tensor carried_input(const Tensor& x, const FieldOutput& options);
/// x with, before its channels, each of them minus its mean over the 3^dims points around, divided
/// by `scale`: [N, domain..., 2 C]. `filter` is detail_filter() of that mesh and type.
Tensor with_details(const Tensor& x,
                    const Tensor& filter,
                    double scale,
                    const std::vector<EdgeRule>& edges);
/// Weights [1, 3..., 1] of "the point minus the mean over 3^dims points".
Tensor detail_filter(int dims, const Mesh& mesh, DType dtype);
/// How the layer that makes the output starts: at zero where the output is a correction, of the
/// added input or (`zero_head`) of something else.
nn::Init head_init(const FieldOutput& options, bool zero_head);
/// Throws ShapeError unless x is [N, domain..., in_channels] with `dims` domain dimensions.
void check_field_input(const char* model, const Tensor& x, int dims, std::int64_t in_channels);
/// Throws UsageError when what is added to the output has fewer channels than it.
void check_field_output(const char* model,
                        const FieldOutput& options,
                        std::int64_t in_channels,
                        std::int64_t out_channels);

}  // namespace tessera::models
