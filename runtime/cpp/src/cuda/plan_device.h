// The device that runs the plans of a target of the backend `cuda`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cublaslt.h"
#include "cuda/cuda_device.h"
#include "cuda/plan.h"

namespace translate_trt::runtime {

// A plan whose kernels are loaded.
struct LoadedPlan {
  struct Kernel {
    cuda::Function function;
    unsigned int shared;  // bytes of dynamic shared memory
    bool is_dependent;    // may begin before the previous kernel has ended
  };

  Plan plan;
  std::map<std::string, std::size_t, std::less<>> tensors;  // indices by name
  std::vector<Kernel> kernels;
  std::vector<cublaslt::Heuristic> algorithms;  // by matmul
};

// Both plans of a target on one GPU, with their kernels and weights, shared by all devices.
class CudaPlans {
 public:
  // Loads in the calling thread's current context, `context`. Throws a bundle error if a kernel has
  // no cubin for the GPU, or one that does not load.
  CudaPlans(std::shared_ptr<const CudaContext> context, const GpuModel& model, Plan encoder,
            Plan step, const SafeTensors& weights, const WeightBlock& block);

  const std::shared_ptr<const CudaContext> gpu;

  const LoadedPlan& plan(int role) const { return role == TT_ENGINE_STEP ? step_ : encoder_; }
  std::uint64_t weights() const { return weights_; }  // address of the block

  // Bytes of the memory of a device: intermediate tensors, and the workspace of matmuls.
  std::size_t arena_bytes() const;
  std::size_t workspace_bytes() const;

 private:
  LoadedPlan load(Plan plan, const GpuModel& model, const SafeTensors& weights);
  cuda::Module module(const PlanKernel& kernel, const std::string& tensor,
                      const SafeTensors& weights);

  CudaQueue memory_;
  std::map<std::string, OwnedModule> modules_;  // by tensor of the weights' file
  LoadedPlan encoder_, step_;
  std::uint64_t weights_ = 0;
};

// A device with its own intermediate tensors and workspace, which one graph uses after another.
class PlanDevice : public CudaDevice {
 public:
  explicit PlanDevice(std::shared_ptr<CudaPlans> plans);
  ~PlanDevice() override;

  void launch(const tt_launch& work) override;

 private:
  using Operations = std::vector<std::unique_ptr<MatmulOperation>>;  // by matmul

  void bind(const LoadedPlan& loaded, const tt_launch& work);
  std::uint64_t resolve(const PlanValue& value) const { return bases_[value.base] + value.value; }
  void run(const LoadedPlan& loaded, const KernelLaunch& launch);
  void run(const LoadedPlan& loaded, const MatmulLaunch& launch);
  void run(const LoadedPlan& loaded, const CopyLaunch& launch);
  void run(const LoadedPlan& loaded, const FillLaunch& launch);

  std::shared_ptr<CudaPlans> plans_;
  CublasLtOwned<cublaslt::HandleTag> handle_;
  std::map<const LoadedPlan*, Operations> operations_;
  std::uint64_t arena_, workspace_;
  std::vector<std::uint64_t> bases_;   // of the current launch
  std::vector<std::byte> parameters_;  // of the current kernel
  // Whether the previous launch of the plan was a kernel: after copies, no launch is dependent.
  bool follows_kernel_ = false;
};

}  // namespace translate_trt::runtime
