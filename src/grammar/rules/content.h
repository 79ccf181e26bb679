// Nodes of a grammar from what a request says of a content. Internal to this module.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/rules/content_rule.h"
#include "grammar/rules/rule_set.h"
#include "grammar/schema_compiler.h"

namespace dsv4::grammar {

// GBNF if any rule is written with `::=`, else Lark.
Result<RuleSet> ParseGrammar(std::string_view text);

// The entry of texts that satisfy the rule; none of them has `closer` within a terminal of its own (empty: no
// such text). Errors begin with the label.
Result<uint32_t> CompileContent(GrammarParts& parts, const ContentRule& rule, const std::string& closer = {});

// For ProgramBuilder::Build: what to say where no text satisfies the rule.
ProgramBuilder::MustLive MustLiveOf(const ContentRule& rule, uint32_t entry);

}  // namespace dsv4::grammar
