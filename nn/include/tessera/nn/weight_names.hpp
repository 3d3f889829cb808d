#pragma once

#include <string>
#include <tessera/nn/checkpoint.hpp>
#include <vector>

namespace tessera::nn {

/// How a tensor of another program relates to one here.
struct WeightRule {
  /// Order of dimensions there.
  enum class Order {
    kByLayer,        ///< kChannelsFirst for weights of convolutions, kAsHere for others
    kAsHere,         ///< the same
    kChannelsFirst,  ///< [a, b, k...] there is [a, k..., b] here: what PyTorch's convolutions have
    kTokens,         ///< [1, tokens, c] there is [grid..., c] here: learned positions
  };
  std::string ours;  ///< pattern of paths here (`*`: any characters, the fewest that fit)
  std::string
      theirs;  ///< name there: its i-th `*` is what the i-th of `ours` took; empty: not there
  Order order = Order::kByLayer;
  int part = 0;   ///< of `parts` equal ones of dimension 0 there (queries, keys and values in one)
  int parts = 1;  ///< all of them are to be named
};

/// The names of another program. A tensor goes by the first rule that fits, or has the same name.
struct WeightNames {
  std::vector<WeightRule> rules = {};
  /// Patterns of tensors there that have no place here and are passed over.
  std::vector<std::string> ignored = {};
};

/// Reads names from a JSON file: `{"rules": [{"ours": "blocks.*.attn.query.weight", "theirs":
/// "layers.*.in_proj_weight", "part": 0, "parts": 3, "order": "as_here"}], "ignored":
/// ["*.num_batches_tracked"]}`; order is "by_layer" (the default), "as_here", "channels_first" or
/// "tokens". Throws DataError.
WeightNames read_weight_names(const std::string& path);
/// The same from text; `origin` stands for it in messages.
WeightNames parse_weight_names(const std::string& text, const std::string& origin);

/// Reads parameters and buffers from a safetensors file of another program (one that PyTorch's
/// `safetensors.torch.save_file(model.state_dict(), path)` wrote), each rank its own part. Throws
/// DataError when a tensor is missing, has another shape or no place; the model is then unchanged.
/// Every rank must call.
void import_weights(const std::string& path, Module& model, const WeightNames& names = {});

/// Writes them so that the other program can read them; the reverse of import_weights. Throws
/// UsageError when two tensors have one name, or a part is missing.
void export_weights(const std::string& path,
                    Module& model,
                    const WeightNames& names = {},
                    const io::Metadata& metadata = {{"format", "pt"}});

}  // namespace tessera::nn
