// State machine over a streamed completion: reasoning, content, DSML blocks, calls, and recovery from damaged
// markup.
#include "chat/completion_parser.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/utf8.h"
#include "chat/dsml_markers.h"
#include "chat/stop_filter.h"
#include "chat/tag_header.h"

namespace dsv4::chat {

class CompletionParser::Impl {
 public:
  Impl(const ChatProfile& profile, ParserOptions options)
      : options_(std::move(options)),
        markers_(profile,
                 {options_.tools_active, options_.promote_calls_in_reasoning, options_.accept_damaged_tags}),
        header_(markers_.tag_starts),
        stop_(options_.stop_strings),
        think_open_(profile.think_open),
        state_(options_.starts_in_reasoning ? State::kReasoningStart : State::kContent) {}

  void SetStopsActive(bool active) { stop_.SetActive(active); }

  std::vector<Delta> Feed(std::string_view bytes) {
    if (!done()) {
      utf8_.Append(bytes, &text_);
      Run();
    }
    return std::exchange(deltas_, {});
  }

  std::vector<Delta> Finish(EndCause cause) {
    DSV4_CHECK(!finished_) << "Finish is called once";
    finished_ = true;
    if (!done()) {
      utf8_.Finish(&text_);
      at_end_ = true;
      Run();
    }
    EndOfText(done() ? EndCause::kStop : cause);
    return std::exchange(deltas_, {});
  }

  bool done() const { return state_ == State::kDone; }
  const std::string& sampled_calls() const { return sampled_calls_; }
  bool damaged() const { return damaged_; }

 private:
  enum class State : unsigned char {
    kReasoningStart,  // where an echoed opener is dropped
    kReasoning,
    kContent,
    kBlock,  // inside a tool block, between invokes
    kAfterBlock,
    kInvokeHeader,
    kBodyStart,  // white space after an invoke's header: parameters or a JSON object follow
    kBody,       // between parameters
    kJsonBody,
    kParameterHeader,
    kValue,
    kDone,
  };

  std::string_view rest() const { return std::string_view(text_).substr(position_); }

  void Consume(size_t size) {
    if (in_block_) sampled_calls_ += rest().substr(0, size);
    position_ += size;
  }

  // Takes steps while they make headway, then forgets the text behind them.
  void Run() {
    while (Step()) {
    }
    text_.erase(0, position_);
    position_ = 0;
  }

  // False when more text is needed.
  bool Step() {
    switch (state_) {
      case State::kReasoningStart:
        return StepReasoningStart();
      case State::kReasoning:
        return StepReasoning();
      case State::kContent:
        return StepContent();
      case State::kBlock:
      case State::kAfterBlock:
        return StepBlock();
      case State::kInvokeHeader:
        return StepInvokeHeader();
      case State::kBodyStart:
        return StepBodyStart();
      case State::kBody:
        return StepBody();
      case State::kJsonBody:
        return StepJsonBody();
      case State::kParameterHeader:
        return StepParameterHeader();
      case State::kValue:
        return StepValue();
      case State::kDone:
        return false;
    }
    return false;
  }

  bool StepReasoningStart() {
    if (rest().starts_with(think_open_)) {
      Consume(think_open_.size());
    } else if (!at_end_ && think_open_.starts_with(rest())) {
      return false;
    }
    state_ = State::kReasoning;
    return true;
  }

  bool StepReasoning() {
    const MarkerSet::Scan found = markers_.reasoning.Find(rest(), at_end_ && !EndsInCutTag());
    EmitText(Delta::Kind::kReasoning, found.plain);
    if (found.length == 0) return false;
    if (const Guess guess = GuessCall(found); guess != Guess::kCall) {
      if (guess == Guess::kText) EmitText(Delta::Kind::kReasoning, found.length);
      return guess == Guess::kText;
    }
    if (found.id == kThinkClose) {
      Consume(found.length);
      state_ = State::kContent;
    } else {
      EnterMarker(found);
    }
    return true;
  }

  bool StepContent() {
    const MarkerSet::Scan found = markers_.content.Find(rest(), at_end_ && !EndsInCutTag());
    if (!EmitText(Delta::Kind::kContent, found.plain)) return false;
    if (found.length == 0) return false;
    if (const Guess guess = GuessCall(found); guess != Guess::kCall)
      return guess == Guess::kText && EmitText(Delta::Kind::kContent, found.length);
    if (found.id == kThinkClose) {  // a stray one: dropped
      Consume(found.length);
    } else {
      FlushContent();
      EnterMarker(found);
    }
    return true;
  }

  // Consumes so much of the text for people. False when a stop string ended it.
  bool EmitText(Delta::Kind kind, size_t size) {
    if (size == 0) return true;
    const std::string_view text = rest().substr(0, size);
    last_ = text.back();
    if (kind == Delta::Kind::kReasoning) {
      Emit(kind, text);
      Consume(size);
      return true;
    }
    std::string content;
    const bool stopped = stop_.Feed(text, content);
    Emit(kind, content);
    Consume(size);
    if (stopped) state_ = State::kDone;
    return !stopped;
  }

  // Reading of what stands at the front of rest(): the beginning of a call, text that speaks of one, or too
  // little to say.
  enum class Guess : unsigned char { kCall, kText, kMore };
  Guess GuessCall(const MarkerSet::Scan& found) const {
    if (found.id != kLooseOpen && found.id != kInvokeOpen) return Guess::kCall;
    // Text is not kept back for longer.
    constexpr size_t kMostBlanks = 64;
    constexpr size_t kMostHeader = 512;
    constexpr std::string_view kQuotes = "`'\"";
    if (rest().front() == '<' && kQuotes.find(last_) != std::string_view::npos) return Guess::kText;
    std::string_view behind = rest().substr(found.length);
    if (found.id == kLooseOpen) {
      const size_t blanks = std::min(behind.find_first_not_of(" \t\r\n"), behind.size());
      if (blanks > kMostBlanks) return Guess::kText;
      behind.remove_prefix(blanks);
      for (const std::string& open : markers_.invoke_opens) {
        if (behind.starts_with(open)) return Guess::kCall;
        if (open.starts_with(behind)) return Guess::kMore;
      }
      return Guess::kText;
    }
    // No further than that is looked, however much is there already: what a header is must not depend on how
    // the text is cut.
    behind = behind.substr(0, kMostHeader);
    TagHeaderScanner header(markers_.tag_starts);
    switch (header.Scan(behind)) {
      case TagHeaderScanner::State::kMore:
        return behind.size() == kMostHeader ? Guess::kText : Guess::kMore;
      case TagHeaderScanner::State::kMalformed:
        return Guess::kText;
      case TagHeaderScanner::State::kComplete:
        break;
    }
    const std::optional<std::string> name = FindAttribute(behind.substr(0, header.length() - 1), "name");
    const bool known = name && (options_.tools.empty() ||
                                std::any_of(options_.tools.begin(), options_.tools.end(),
                                            [&](const ToolSchema& tool) { return tool.name == *name; }));
    return known ? Guess::kCall : Guess::kText;
  }

  // An opener that the length limit cut in two is not text for people, unlike a lone "<" or line feed.
  bool EndsInCutTag() const {
    for (const std::string& start : markers_.tag_starts) {
      if (rest().find(start) != std::string_view::npos) return true;
    }
    return false;
  }

  void FlushContent() {
    std::string content;
    stop_.Flush(content);
    Emit(Delta::Kind::kContent, content);
  }

  // Leaves text for a block, an invoke or the end.
  void EnterMarker(const MarkerSet::Scan& found) {
    if (found.id == kEndOfSentence) {
      position_ += found.length;  // not part of sampled_calls
      state_ = State::kDone;
      return;
    }
    if (!in_block_ && found.id != kBlockOpen) damaged_ = true;
    in_block_ = true;
    Consume(found.length);
    state_ = State::kBlock;
    if (found.id == kInvokeOpen) StartHeader(State::kInvokeHeader);
    if (found.id == kBlockClose) state_ = State::kAfterBlock;
  }

  void StartHeader(State state) {
    header_.Reset();
    state_ = state;
  }

  bool StepBlock() {
    const MarkerSet& set = state_ == State::kBlock ? markers_.block : markers_.after_block;
    const MarkerSet::Scan found = set.Find(rest(), at_end_);
    Consume(found.plain);  // white space, or text that does not belong here
    if (found.length == 0) return false;
    EnterMarker(found);
    return true;
  }

  // The header's attributes once it is complete; nothing while it is not. A malformed one leaves `header`
  // empty.
  bool ScanHeader(std::optional<std::string>& header) {
    const TagHeaderScanner::State scanned = header_.Scan(rest());
    if (scanned == TagHeaderScanner::State::kMore) return false;
    if (scanned == TagHeaderScanner::State::kComplete)
      header = std::string(rest().substr(0, header_.length() - 1));
    Consume(header_.length());
    return true;
  }

  bool StepInvokeHeader() {
    std::optional<std::string> header;
    if (!ScanHeader(header)) return false;
    const std::optional<std::string> name = header ? FindAttribute(*header, "name") : std::nullopt;
    if (name) {
      BeginCall(*name);
      state_ = State::kBodyStart;
    } else {
      state_ = State::kBlock;
    }
    return true;
  }

  bool StepBodyStart() {
    const size_t first = rest().find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) {
      Consume(rest().size());
      return false;
    }
    Consume(first);
    state_ = rest().front() == '{' ? State::kJsonBody : State::kBody;
    return true;
  }

  bool StepBody() {
    const MarkerSet::Scan found = markers_.body.Find(rest(), at_end_);
    Consume(found.plain);
    if (found.length == 0) return false;
    if (found.id == kParameterOpen) {
      Consume(found.length);
      StartHeader(State::kParameterHeader);
    } else if (found.id == kInvokeClose) {
      Consume(found.length);
      EndCall();
      state_ = State::kBlock;
    } else {
      // The next invoke or the block's end: only the closer was forgotten, every parameter is whole.
      if (found.id != kEndOfSentence) EndCall();
      EnterMarker(found);
    }
    return true;
  }

  bool StepJsonBody() {
    const MarkerSet::Scan found = markers_.json_body.Find(rest(), at_end_);
    body_ += rest().substr(0, found.plain);
    Consume(found.plain + found.length);
    if (found.length == 0) return false;
    std::string fragment;
    arguments_->WriteBody(body_, fragment);
    EmitArguments(fragment);
    EmitCallEnd();
    state_ = State::kBlock;
    return true;
  }

  bool StepParameterHeader() {
    std::optional<std::string> header;
    if (!ScanHeader(header)) return false;
    const std::optional<std::string> name = header ? FindAttribute(*header, "name") : std::nullopt;
    if (!name) {
      // A call that lacks a parameter the model meant to give must not run: it stays begun and never ends.
      arguments_.reset();
      state_ = State::kBlock;
      return true;
    }
    std::string fragment;
    arguments_->BeginParameter(*name, FindAttribute(*header, "string") != "false", fragment);
    EmitArguments(fragment);
    state_ = State::kValue;
    return true;
  }

  bool StepValue() {
    const MarkerSet::Scan found = markers_.value.Find(rest(), /*at_end=*/false);
    std::string fragment;
    arguments_->Value(rest().substr(0, found.plain), fragment);
    Consume(found.plain + found.length);
    if (found.length > 0) {
      arguments_->EndParameter(fragment);
      state_ = State::kBody;
    }
    EmitArguments(fragment);
    return found.length > 0;
  }

  void BeginCall(const std::string& name) {
    const ToolSchema* schema = nullptr;
    for (const ToolSchema& tool : options_.tools) {
      if (tool.name == name) schema = &tool;
    }
    arguments_.emplace(schema);
    body_.clear();
    ++num_begun_;
    deltas_.push_back({.kind = Delta::Kind::kToolCallBegin, .index = num_begun_ - 1, .text = name});
  }

  void EndCall() {
    std::string fragment;
    arguments_->End(fragment);
    EmitArguments(fragment);
    EmitCallEnd();
  }

  void EmitCallEnd() {
    arguments_.reset();
    ++num_complete_;
    deltas_.push_back({.kind = Delta::Kind::kToolCallEnd, .index = num_begun_ - 1, .text = ""});
  }

  void EmitArguments(const std::string& fragment) { Emit(Delta::Kind::kArguments, fragment, num_begun_ - 1); }

  void Emit(Delta::Kind kind, std::string_view text, int index = -1) {
    if (text.empty()) return;
    if (!deltas_.empty() && deltas_.back().kind == kind && deltas_.back().index == index) {
      deltas_.back().text += text;
    } else {
      deltas_.push_back({.kind = kind, .index = index, .text = std::string(text)});
    }
  }

  void EndOfText(EndCause cause) {
    FlushContent();
    const bool is_cut =
        num_complete_ < num_begun_ ||
        (in_block_ ? num_complete_ == 0 || state_ == State::kInvokeHeader : !done() && !rest().empty());
    if (in_block_ && !done()) sampled_calls_ += rest();  // what was held back, or cut
    if (options_.show_failed_block && in_block_ && num_complete_ == 0) {
      Emit(Delta::Kind::kContent, sampled_calls_);
    }
    Delta end{.kind = Delta::Kind::kDone, .text = stop_.found()};
    end.has_cut_call = is_cut;
    // A client that reads of a good end would take the calls for all there are.
    if (cause == EndCause::kLength || is_cut) {
      end.finish_reason = FinishReason::kLength;
    } else if (num_complete_ > 0) {
      end.finish_reason = FinishReason::kToolCalls;
    }
    deltas_.push_back(std::move(end));
  }

  const ParserOptions options_;
  const DsmlMarkers markers_;
  TagHeaderScanner header_;
  StopFilter stop_;
  const std::string_view think_open_;
  Utf8Repairer utf8_;
  State state_;
  bool at_end_ = false;
  bool finished_ = false;
  bool in_block_ = false;  // from the first block on, for good
  bool damaged_ = false;
  char last_ = '\n';  // of the text for people
  std::string text_;  // fed and not yet consumed from position_ on
  size_t position_ = 0;
  std::string sampled_calls_;
  std::optional<ArgumentsWriter> arguments_;  // of the call that is open
  std::string body_;
  int num_begun_ = 0;
  int num_complete_ = 0;
  std::vector<Delta> deltas_;
};

CompletionParser::CompletionParser(const ChatProfile& profile, ParserOptions options)
    : impl_(std::make_unique<Impl>(profile, std::move(options))) {}
CompletionParser::~CompletionParser() = default;
CompletionParser::CompletionParser(CompletionParser&&) noexcept = default;
CompletionParser& CompletionParser::operator=(CompletionParser&&) noexcept = default;

void CompletionParser::SetStopsActive(bool active) { impl_->SetStopsActive(active); }
std::vector<Delta> CompletionParser::Feed(std::string_view bytes) { return impl_->Feed(bytes); }
std::vector<Delta> CompletionParser::Finish(EndCause cause) { return impl_->Finish(cause); }
bool CompletionParser::done() const { return impl_->done(); }
const std::string& CompletionParser::sampled_calls() const { return impl_->sampled_calls(); }
bool CompletionParser::damaged() const { return impl_->damaged(); }

std::vector<ToolSchema> ToolSchemas(const std::vector<JsonValue>& tools) {
  std::vector<ToolSchema> schemas;
  for (const JsonValue& tool : tools) {
    const JsonValue* function = tool.Find("function");
    const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
    const JsonValue* parameters = function == nullptr ? nullptr : function->Find("parameters");
    const JsonValue* properties = parameters == nullptr ? nullptr : parameters->Find("properties");
    if (name == nullptr) continue;
    ToolSchema& schema = schemas.emplace_back();
    schema.name = name->text();
    if (properties == nullptr) continue;
    for (const auto& [key, value] : properties->members()) schema.properties.push_back(key);
  }
  return schemas;
}

CollectedCompletion ParseLenient(const ChatProfile& profile, std::string_view text, ParserOptions options,
                                 EndCause cause) {
  CompletionParser parser(profile, std::move(options));
  CompletionCollector collector;
  for (const Delta& delta : parser.Feed(text)) collector.Add(delta);
  for (const Delta& delta : parser.Finish(cause)) collector.Add(delta);
  return collector.Take();
}

}  // namespace dsv4::chat
