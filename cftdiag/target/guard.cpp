// Gives a torch without a GPU (a CPU-only build, or a CUDA build on a host without one) just enough of a "CUDA device" for fake tensors and
// autograd tracing, while switched on. Nothing can be launched.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

using namespace c10;
using namespace c10::impl;

namespace {

struct Guard : NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static Device dev() { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return dev(); }
  Device getDevice() const override { return dev(); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, dev()); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, dev()); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, dev()); }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

struct Hooks : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }                        // so that at::getAccelerator() is CUDA
  bool hasPrimaryContext(DeviceIndex) const override { return false; }  // autograd's engine: nothing to switch to
  virtual void end() const {}  // Itanium ABI: the first new virtual takes the slot after the base's last
};

constexpr size_t HEADER = 2;  // offset to top, type info
constexpr size_t CAPACITY = 256;

// Itanium ABI: a pointer to a virtual member is 1 + its byte offset in the table. An even value is a plain address: not virtual.
template <class F>
size_t slot(F f) {
  size_t raw[2];
  static_assert(sizeof f == sizeof raw, "pointers to members have another shape here");
  std::memcpy(raw, &f, sizeof raw);
  return (raw[0] & 1) ? (raw[0] - 1) / sizeof(void*) : CAPACITY;
}

void* table[HEADER + CAPACITY];
void** original = nullptr;
const DeviceGuardImplInterface* original_guard = nullptr;

}  // namespace

// The hooks are only ever called through the interface class, so exactly the interface's slots need to exist in the copy, whatever class the
// object really has (the stub of a CPU-only build, the hooks of a CUDA build). Every such object has at least these slots.
extern "C" size_t interface_slots() { return slot(&Hooks::end); }

// 0: done; -1: the hooks object does not look as expected, nothing was changed.
extern "C" int fake_cuda(int on) {
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  void**& current = *reinterpret_cast<void***>(&hooks);
  auto& guard = device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)];
  if (!original) {
    const size_t n = interface_slots();
    const size_t swap[] = {slot(&at::CUDAHooksInterface::isBuilt), slot(&at::CUDAHooksInterface::hasPrimaryContext)};
    if (n >= CAPACITY || swap[0] >= n || swap[1] >= n || current[-2] != nullptr) return -1;
    static Hooks* mine = new Hooks();
    std::memcpy(table, current - HEADER, sizeof(void*) * (HEADER + n));
    for (size_t s : swap) table[HEADER + s] = (*reinterpret_cast<void***>(mine))[s];
    original = current;
    original_guard = guard.load();
  }
  static const DeviceGuardImplInterface* stub = new Guard();
  current = on ? table + HEADER : original;
  guard.store(on ? stub : original_guard);
  return 0;
}
