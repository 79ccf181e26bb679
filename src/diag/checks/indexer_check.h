// indexer: do the entries that an indexer chooses hold what attention looks at? Training makes it so: an indexer learns where the layers that
// read its choice look. A transposed or exchanged weight keeps every size, and the choice is then no better than chance.
//
// A long text is read. At some positions of every layer that reads a choice the softmax is taken over all visible entries. Three shares of it are
// compared: that of the chosen entries, that of as many at random, and that of the largest. A layer's skill is 0 where the choice is as good as
// chance, and 1 where no other would keep more.
#pragma once

#include <cstdint>
#include <span>

#include "diag/report/report.h"
#include "diag/subject.h"

namespace dsv4::diag {

// Tokens of a text in which every choice has three times as many visible entries as it takes; 0 where no layer that runs chooses.
int64_t IndexerTextTokens(const model::Model& model);

// A finding for each choice of a skill below a third. Not applicable where no layer chooses, the text is too short for any choice, or attention
// looks nowhere. The text is one that a trained model understands. Errors: those of Model::Step.
Result<CheckReport> CheckIndexer(const Subject& subject, std::span<const int32_t> tokens);

}  // namespace dsv4::diag
