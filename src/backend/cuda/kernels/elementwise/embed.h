// embed: some elements, of any tokens and streams.
#pragma once

#include "ops/embed.h"

namespace dsv4::backend::cuda {

class LaunchContext;

void LaunchEmbed(LaunchContext& context, const ops::EmbedArgs& args);

}  // namespace dsv4::backend::cuda
