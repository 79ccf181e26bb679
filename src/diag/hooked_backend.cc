// Backend that calls hooks in front of and behind each op of another backend.
#include "diag/hooked_backend.h"

#include "base/check.h"

namespace dsv4::diag {
namespace {

// Op tables hold plain functions, so the context carries what they need to know.
class HookedContext final : public ops::OpContext {
 public:
  HookedContext(ops::Backend inner, std::shared_ptr<OpHooks> hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}
  Memory& memory() override { return inner_.context->memory(); }
  ThreadPool& threads() override { return inner_.context->threads(); }
  Stream stream() override { return inner_.context->stream(); }
  // A replay calls no op, so a hook would see none.
  ops::StepReplayer* replayer() override { return AnyHook() ? nullptr : inner_.context->replayer(); }

  const ops::Backend& inner() const { return inner_; }
  const OpHooks& hooks() const { return *hooks_; }

 private:
  bool AnyHook() const {
    bool any = false;
#define DSV4_HAS_HOOK(name, Args) any = any || hooks_->name != nullptr;
    DSV4_FOR_EACH_OP(DSV4_HAS_HOOK)
    DSV4_FOR_EACH_SHARD_OP(DSV4_HAS_HOOK)
#undef DSV4_HAS_HOOK
    return any;
  }

  ops::Backend inner_;
  std::shared_ptr<OpHooks> hooks_;
};

#define DSV4_HOOKED_OP(name, Op)                                                                            \
  Status Hooked_##name(ops::OpContext& context, const ops::Op##Args& args) {                                \
    const auto& hooked = static_cast<const HookedContext&>(context);                                        \
    const ops::Backend& inner = hooked.inner();                                                             \
    if (!hooked.hooks().name) return inner.table.name(*inner.context, args);                                \
    return hooked.hooks().name([&](const ops::Op##Args& a) { return inner.table.name(*inner.context, a); }, \
                               args);                                                                       \
  }
DSV4_FOR_EVERY_OP(DSV4_HOOKED_OP)
#undef DSV4_HOOKED_OP

}  // namespace

HookedBackend::HookedBackend(ops::Backend inner)
    : inner_(std::move(inner)), hooks_(std::make_shared<OpHooks>()) {
  DSV4_CHECK(ops::MissingOps(inner_.table).empty()) << inner_.name;
  backend_.name = inner_.name;
  backend_.modes = inner_.modes;
  backend_.packs_rows = inner_.packs_rows;
  backend_.context = std::make_shared<HookedContext>(inner_, hooks_);
#define DSV4_HOOKED_ENTRY(name, Op) backend_.table.name = Hooked_##name;
  DSV4_FOR_EACH_OP(DSV4_HOOKED_ENTRY)
#undef DSV4_HOOKED_ENTRY
#define DSV4_HOOKED_ENTRY(name, Op) \
  if (inner_.table.name != nullptr) backend_.table.name = Hooked_##name;
  DSV4_FOR_EACH_SHARD_OP(DSV4_HOOKED_ENTRY)
#undef DSV4_HOOKED_ENTRY
}

HookedBackend::Scope::Scope(HookedBackend& backend, OpHooks hooks) : backend_(backend) {
  DSV4_CHECK(!backend_.scoped_) << "hooks of " << backend_.inner_.name << " are in use";
  backend_.scoped_ = true;
  *backend_.hooks_ = std::move(hooks);
}

HookedBackend::Scope::~Scope() {
  *backend_.hooks_ = OpHooks();
  backend_.scoped_ = false;
}

}  // namespace dsv4::diag
