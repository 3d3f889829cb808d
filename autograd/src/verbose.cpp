#include "verbose.hpp"

#include <cstdio>
#include <cstdlib>

namespace tessera {

bool verbose() {
  static const bool on = [] {
    const char* text = std::getenv("TESSERA_VERBOSE");
    return text != nullptr && text[0] != '\0' && text[0] != '0';
  }();
  return on && process().rank == 0;
}

void verbose_redistribution(const char* op, const Layout& from, const Layout& to) {
  if (verbose())
    std::fprintf(stderr, "tessera:   %s: %s -> %s\n", op, from.str().c_str(), to.str().c_str());
}

void verbose_op(const OpDef& op,
                std::span<const Tensor> inputs,
                const Outputs& outputs,
                std::int64_t halo_bytes,
                int messages) {
  if (!verbose()) return;
  std::string text = str("tessera: ", op.name);
  for (const Tensor& x : inputs)
    text += x.defined() ? str(" ", name(x.dtype()), x.layout()) : std::string(" -");
  text += " ->";
  for (int j = 0; j < outputs.size(); ++j)
    text += str(" ", name(outputs[j].dtype()), outputs[j].layout());
  if (messages > 0)
    text += str("  (halo: ", messages, " messages, ", halo_bytes, " bytes from rank 0)");
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace tessera
