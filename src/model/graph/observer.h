// Observer: sees every intermediate of a step, for tests and the `diagnose` command. None is attached by
// default.
//
// A step runs as one or more passes through the layers (a long chunk takes several). Each pass reports its
// tensors in the order in which they arise. Letter n is the number of tokens of the pass, all sequences
// together. Letter T is the activations' dtype (BF16 in release numerics, F32 in plain). Others are those of
// weights.h. In layer -1:
//
// | name                    | shape, dtype               | what                                                            |
// | pass.token_ids          | [n] I32                    | the tokens                                                      |
// | pass.positions          | [n] I32                    | their absolute positions                                        |
// | pass.chunks             | [n] I32, host              | which chunk of the Step call each row belongs to                |
// | embed                   | [n, H, D] T                | the residual streams in front of layer 0                        |
// | head.streams            | [rows, H, D] T             | the streams of the rows whose logits are wanted                 |
// | head.hc                 | [rows, D] T                | hc_head                                                         |
// | head.norm               | [rows, D] T                | the final norm                                                  |
// | logits                  | [rows, vocab_size] F32     |                                                                 |
//
// and in layers 0 .. :
//
// | name                    | shape, dtype               | what                                                            |
// | attn.hc_pre             | [n, D] T                   | the streams mixed to one                                        |
// | attn.hc_post            | [n, H] F32                 | weight of the sub-layer's output in each stream                 |
// | attn.hc_comb            | [n, H, H] F32              | weight of each stream in each stream                            |
// | attn.norm               | [n, D] T                   | attn_norm: the input of all of attention                        |
// | attn.q_a                | [n, q_lora_rank] T         | wq_a                                                            |
// | attn.q_lora             | [n, q_lora_rank] T         | normed; feeds wq_b and the indexer                              |
// | attn.q_b                | [n, heads * d] T           | wq_b                                                            |
// | attn.q_norm             | [n, heads, d] T            | after the norm per head                                         |
// | attn.q                  | [n, heads, d] T            | rotated                                                         |
// | attn.kv_a               | [n, d] T                   | wkv                                                             |
// | attn.kv_norm            | [n, d] T                   | normed                                                          |
// | attn.kv                 | [n, d] T                   | rotated (and rounded): the window rows                          |
// | attn.compressor.values  | [n, channels * d] F32      | wkv of the compressor                                           |
// | attn.compressor.scores  | [n, channels * d] F32      | wgate of the compressor, without ape                            |
// | attn.compressor.pooled  | [new entries, d] T         | entries completed in this pass, by sequence, then by index      |
// | attn.compressor.norm    | [new entries, d] T         | normed                                                          |
// | attn.compressed         | [new entries, d] T         | rotated (and rounded): as stored                                |
// | attn.indexer.compressor.values, .scores, .pooled, .norm | the same at index_head_dim                                     |
// | attn.indexer.compressed | [new entries, index_head_dim] T | the indexer's keys as stored                               |
// | attn.indexer.q_b        | [n, index_n_heads * index_head_dim] T | wq_b of the indexer                                  |
// | attn.indexer.q          | [n, index_n_heads, index_head_dim] T | rotated (Hadamard and rounded)                        |
// | attn.indexer.weights    | [n, index_n_heads] T       | scaled head weights                                             |
// | attn.indexer.selected   | [n, index_topk] I32        | chosen entries in ascending order, then -1                      |
// | attn.o                  | [n, heads, d] T            | softmax over the visible set                                    |
// | attn.o_unrotated        | [n, heads, d] T            | after the inverse rotation                                      |
// | attn.o_lora             | [n, o_groups, o_lora_rank] T | wo_a                                                          |
// | attn.out                | [n, D] T                   | wo_b                                                            |
// | attn.streams            | [n, H, D] T                | the residual streams after attention                            |
// | ffn.hc_pre, ffn.hc_post, ffn.hc_comb, ffn.norm          | as above, for the experts                                      |
// | ffn.router.logits       | [n, n_routed_experts] F32  | gate                                                            |
// | ffn.shared.hidden       | [n, I] T                   | swiglu of the shared expert: what its w2 reads                  |
// | ffn.router.indices      | [n, num_experts_per_tok] I32 | the chosen experts                                            |
// | ffn.router.weights      | [n, num_experts_per_tok] F32 | and their weights                                             |
// | ffn.routed              | [n, D] F32                 | sum over the chosen experts                                     |
// | ffn.shared              | [n, D] T                   | the shared expert                                               |
// | ffn.out                 | [n, D] T                   | both together                                                   |
// | ffn.streams             | [n, H, D] T                | the residual streams after the layer                            |
#pragma once

#include <string_view>

#include "tensor/tensor.h"

namespace dsv4::model {

class Observer {
 public:
  virtual ~Observer() = default;
  // `tensor` is on the backend's device and valid during the call only: its memory is written again soon
  // after. Contiguous.
  virtual void OnTensor(int layer, std::string_view name, const TensorView& tensor) = 0;
};

}  // namespace dsv4::model
