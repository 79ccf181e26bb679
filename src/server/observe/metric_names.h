// Metrics under the names of another server: routers, load generators and dashboards ask for vLLM's.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/observe/metrics.h"

namespace dsv4::server {

// The families under these names. A copy under a name of vLLM's has the labels `model_name` and `engine` in
// front of its own. With kVllm a family that has such a name goes out under that alone; one that has none
// keeps its own.
std::vector<prometheus::MetricFamily> Named(std::vector<prometheus::MetricFamily> families, MetricNames names,
                                            const std::string& model_id);

}  // namespace dsv4::server
