// sa_ask DEVICE PORT: asks the subnet administrator of that port, under ibsim's libumad2sim, which stands before the C
// library's file calls. Questions are lines "SLID DLID SL" on standard input, SL -1 for any; each answer is a line with the
// SL, "none", or an error.
#include <dlfcn.h>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "verbs/link.h"
#include "verbs/sa_client.h"

namespace {

using sluice::SaClient;

// The simulator takes the header's size from libibumad, which learns it when it opens a port itself.
void TellHeaderSize(const char* device, int port) {
  void* library = dlopen("libibumad.so.3", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  auto* open_port = reinterpret_cast<int (*)(const char*, int)>(dlsym(library, "umad_open_port"));
  auto* close_port = reinterpret_cast<int (*)(int)>(dlsym(library, "umad_close_port"));
  if (open_port == nullptr || close_port == nullptr) return;
  const int id = open_port(device, port);
  if (id >= 0) close_port(id);
}

long PortNumber(const std::string& path, const char* file) {
  return strtol(sluice::ReadTextFile(path + file, 32).value_or("0").c_str(), nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int number = atoi(argv[2]);
  TellHeaderSize(argv[1], number);
  sluice::Result<sluice::UmadPort> port =
      sluice::UmadPort::Open("/sys/class/infiniband_mad", argv[1], number);
  if (!port.ok()) {
    printf("%s\n", port.status().message().c_str());
    return 1;
  }
  const std::string path = std::string("/sys/class/infiniband/") + argv[1] + "/ports/" + argv[2];
  const sluice::SaAddress sa{.lid = static_cast<uint16_t>(PortNumber(path, "/sm_lid")),
                             .sl = static_cast<uint8_t>(PortNumber(path, "/sm_sl"))};
  SaClient client(std::move(*port), {});
  unsigned slid, dlid;
  int sl;
  while (scanf("%u %u %d", &slid, &dlid, &sl) == 3) {
    bool answered = false;
    client.Ask({.slid = static_cast<uint16_t>(slid), .dlid = static_cast<uint16_t>(dlid), .sl = sl}, sa,
               SaClient::Clock::now(), [&](const sluice::Result<sluice::SaPath>& answer) {
                 answered = true;
                 const std::string text = !answer.ok()    ? answer.status().message()
                                          : answer->found ? std::to_string(answer->sl)
                                                          : "none";
                 printf("%s\n", text.c_str());
               });
    while (!answered) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*client.next() - SaClient::Clock::now());
      pollfd ready{client.fd(), POLLIN, 0};
      if (poll(&ready, 1, std::max(0, static_cast<int>(left.count()))) > 0) {
        client.OnReadable(SaClient::Clock::now());
      } else {
        client.OnTime(SaClient::Clock::now());
      }
    }
  }
  return 0;
}
