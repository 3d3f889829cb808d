#include "support/faulty_transport.hpp"

#include <cstring>
#include <string_view>
#include <vector>

namespace tessera::test {

using parallel::Call;
using parallel::CallKind;
using parallel::Operation;
using parallel::Transport;

namespace {

class SpoiledOperation : public Operation {
 public:
  SpoiledOperation(Ref<Operation> inner, const Call& call, const FaultyTransport::Spoil& spoil)
      : inner_(std::move(inner)), call_(call), spoil_(spoil) {
    if (call.kind == CallKind::kAllReduce) {
      const auto bytes = static_cast<std::size_t>(call.in_counts[0]) * size_of(call.dtype);
      before_.resize(bytes);
      if (bytes > 0) std::memcpy(before_.data(), call.out, bytes);
    }
  }
  void begin(Ref<Operation> inner) { inner_ = std::move(inner); }
  bool advance() override {
    if (done_) return true;
    done_ = inner_->advance();
    messages_ = inner_->messages();
    bytes_ = inner_->bytes();
    if (done_) spoil_(call_, before_.data());
    return done_;
  }
  std::vector<int> missing() const override { return inner_->missing(); }

 private:
  Ref<Operation> inner_;
  Call call_;
  FaultyTransport::Spoil spoil_;
  std::vector<std::byte> before_;
  bool done_ = false;
};

}  // namespace

class FaultyTransport::Wrapper : public Transport {
 public:
  explicit Wrapper(Spoil spoil) : spoil_(std::move(spoil)) {}
  Ref<Operation> start(const Call& call) override {
    if (std::string_view(call.info.op) == "test") return inner_->start(call);
    // The buffers are looked at before the call may write into them.
    auto spoiled = make_ref<SpoiledOperation>(Ref<Operation>(), call, spoil_);
    spoiled->begin(inner_->start(call));
    return spoiled;
  }
  std::unique_ptr<Transport> inner_;

 private:
  Spoil spoil_;
};

FaultyTransport::FaultyTransport(Spoil spoil) {
  auto wrapper = std::make_unique<Wrapper>(std::move(spoil));
  Wrapper& here = *wrapper;
  here.inner_ = parallel::exchange_transport(Device::kCpu, std::move(wrapper));
}

FaultyTransport::~FaultyTransport() {
  const std::unique_ptr<Transport> mine = parallel::exchange_transport(Device::kCpu, nullptr);
  parallel::exchange_transport(Device::kCpu, std::move(static_cast<Wrapper&>(*mine).inner_));
}

}  // namespace tessera::test
