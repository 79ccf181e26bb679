// PassArrays: the arrays of a pass that ops take and that differ from one decode step to the next. They hold
// slots of rows, page tables, positions, and numbers drawn. Each is made by a function of the pass, a recipe.
// A replay of the step calls it again for its own pass (ops/step_replay.h). A recipe is a plain function, so
// that it can know nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "model/graph/pass_plan.h"
#include "ops/attention.h"
#include "ops/compressor_pool.h"
#include "ops/indexer_select.h"
#include "ops/sample.h"
#include "ops/step_replay.h"
#include "sampling/choice.h"
#include "tensor/rows.h"

namespace dsv4::model {

class PassArrays final : public ops::StepArrays {
 public:
  // Key of an array beside the pass: `which` is the recipe's own.
  struct Of {
    int layer = 0;     // The owners of rows, as LayerPlan has them: of the window,
    int entries = -1;  // of the entries that it reads,
    int keys = -1;     // and of the indexer keys.
    int64_t which = 0;
  };
  template <typename T>
  using Recipe = void (*)(const PassPlan& plan, const Of& of, std::vector<T>* out);

  // An array for ops of this pass; lives until EndPass.
  template <typename T>
  std::span<const T> Make(Recipe<T> recipe, const PassPlan& plan, const Of& of) {
    std::vector<T> values = {};
    recipe(plan, of, &values);
    return Add(std::move(values),
               {.remake = &Remake<T>, .recipe = reinterpret_cast<void (*)()>(recipe), .of = of});
  }
  // One that is the same in every step of a key.
  template <typename T>
  std::span<const T> Fixed(std::vector<T> values) {
    fixed_.emplace_back();
    for (const T& value : values) {
      const auto bytes = std::as_bytes(std::span(&value, 1));
      fixed_.back().insert(fixed_.back().end(), bytes.begin(), bytes.end());
    }
    return Add(
        std::move(values),
        {.remake = &TakeFixed<T>,
         .recipe = nullptr,
         .of = {.layer = 0, .entries = -1, .keys = -1, .which = static_cast<int64_t>(fixed_.size()) - 1}});
  }
  // The arrays' memory goes; how they are made stays.
  void EndPass() { made_ = {}; }

  // Logits of a pass that ends with them (ChosenTokens::later): up to so many rows at a time as the head computes. In the arena, until the next pass.
  std::vector<TensorView> logits;

  // Arrays are made of this pass from now on.
  void SetPass(const PassPlan* plan) { plan_ = plan; }

  size_t size() const override { return made_by_.size(); }
  int64_t Find(std::span<const std::byte> bytes) const override {
    for (size_t i = made_by_.size(); i > 0; --i) {
      const MadeBy& made = made_by_[i - 1];
      if (made.data == bytes.data() && made.num_bytes == bytes.size()) return static_cast<int64_t>(i) - 1;
    }
    return -1;
  }
  Array Make(size_t i) override { return made_by_[i].remake(*this, made_by_[i]); }

 private:
  struct MadeBy {
    Array (*remake)(PassArrays&, const MadeBy&);
    void (*recipe)();  // Recipe of some type, which `remake` knows.
    Of of;
    const void* data = nullptr;  // In the pass that was walked,
    size_t num_bytes = 0;        // where it may not be asked for in parts.
  };

  template <typename T>
  std::span<const T> Add(std::vector<T> values, MadeBy made_by) {
    if (values.capacity() == 0) values.reserve(1);  // So that it lies somewhere.
    auto& of_type = std::get<std::deque<std::vector<T>>>(made_);
    of_type.push_back(std::move(values));
    made_by.data = of_type.back().data();
    made_by.num_bytes = of_type.back().size() * sizeof(T);
    made_by_.push_back(made_by);
    return {of_type.back().data(), of_type.back().size()};
  }
  template <typename T>
  static Array Remake(PassArrays& arrays, const MadeBy& made_by) {
    auto& values = std::get<std::vector<T>>(arrays.again_);
    values.clear();
    reinterpret_cast<Recipe<T>>(made_by.recipe)(*arrays.plan_, made_by.of, &values);
    return {values.data(), values.size(), sizeof(T)};
  }
  template <typename T>
  static Array TakeFixed(PassArrays& arrays, const MadeBy& made_by) {
    const std::vector<std::byte>& bytes = arrays.fixed_[static_cast<size_t>(made_by.of.which)];
    return {bytes.data(), bytes.size() / sizeof(T), sizeof(T)};
  }

  template <template <typename> typename Of>
  using OfAllTypes =
      std::tuple<Of<int32_t>, Of<RowRun>, Of<ops::CompressorSequence>, Of<ops::AttentionSequence>,
                 Of<ops::IndexerSequence>, Of<sampling::ChoiceParams>, Of<ops::RowChange>>;
  template <typename T>
  using Several = std::deque<std::vector<T>>;
  template <typename T>
  using One = std::vector<T>;

  std::vector<MadeBy> made_by_;
  std::vector<std::vector<std::byte>> fixed_;
  OfAllTypes<Several> made_;
  OfAllTypes<One> again_;
  const PassPlan* plan_ = nullptr;
};

}  // namespace dsv4::model
