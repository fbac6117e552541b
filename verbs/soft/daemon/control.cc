// Looking into a running fabric process and causing faults in it, by lines of text over its socket.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "verbs/soft/daemon/server.h"

namespace sluice::soft {
namespace {

constexpr size_t kMaxAnswerBytes = 160 * 1024;

void PrintPort(std::ostringstream& out, const std::string& host, const Nic& nic, uint32_t port) {
  const PortCounters* c = nic.counters(port);
  ibv_port_attr attr{};
  nic.QueryPort(port, &attr);
  out << "port host=" << host << " device=" << nic.info().name << " port=" << port
      << " state=" << (attr.state == IBV_PORT_ACTIVE ? "active" : "down") << " tx_bytes=" << c->tx_bytes
      << " rx_bytes=" << c->rx_bytes << " tx_packets=" << c->tx_packets << " rx_packets=" << c->rx_packets
      << " tx_payload_bytes=" << c->tx_payload_bytes << " rx_payload_bytes=" << c->rx_payload_bytes
      << " retransmitted_packets=" << c->retransmitted_packets << " rnr_nak_sent=" << c->rnr_nak_sent
      << " local_ack_timeout_err=" << c->local_ack_timeout_err << " dropped_packets=" << c->dropped_packets;
  for (int sl = 0; sl < 16; ++sl) {
    if (c->tx_bytes_by_sl[sl] != 0) out << " sl" << sl << "=" << c->tx_bytes_by_sl[sl];
  }
  for (int tc = 0; tc < 256; ++tc) {
    if (c->tx_bytes_by_traffic_class[tc] != 0) out << " tc" << tc << "=" << c->tx_bytes_by_traffic_class[tc];
  }
  out << "\n";
}

std::string StatusText(Server* server) {
  Fabric* fabric = server->fabric();
  const FabricStatistics statistics = fabric->statistics();
  std::ostringstream out;
  out << "fabric instance=" << server->instance() << " pid=" << getpid()
      << " clients=" << server->client_count() << " model_ns=" << fabric->Now() / kPicosPerNs
      << " dilation=" << server->dilation() << " events=" << statistics.events
      << " packet_hops=" << statistics.packet_hops << " dropped_packets=" << statistics.dropped_packets
      << " corrupted_packets=" << statistics.corrupted_packets
      << " payload_bytes=" << server->pool().bytes_in_use()
      << " payload_reserved=" << server->pool().bytes_reserved() << " topology=" << server->topology().name
      << "\n";
  const auto& hosts = fabric->topology().hosts;
  for (uint32_t host = 0; host < hosts.size(); ++host) {
    for (uint32_t index = 0; index < fabric->nic_count(host); ++index) {
      const Nic* nic = fabric->nic(host, index);
      for (uint32_t port = 1; port <= nic->port_count(); ++port) {
        const PortCounters* counters = nic->counters(port);
        if (counters->tx_packets + counters->rx_packets + counters->link_downed == 0) continue;
        PrintPort(out, hosts[host].name, *nic, port);
        if (out.tellp() > static_cast<std::streamoff>(kMaxAnswerBytes)) return out.str();
      }
    }
  }
  return out.str();
}

// A host by its name in the topology or its number. On demand, only those that programs have taken exist.
Nic* FindNic(Server* server, const std::string& host, const std::string& device) {
  Fabric* fabric = server->fabric();
  const auto& hosts = fabric->topology().hosts;
  for (uint32_t index = 0; index < hosts.size(); ++index) {
    if (hosts[index].name != host && std::to_string(index) != host) continue;
    if (fabric->topology().on_demand && !server->HostInUse(index)) continue;
    for (uint32_t nic = 0; nic < fabric->nic_count(index); ++nic) {
      if (fabric->nic(index, nic)->info().name == device) return fabric->nic(index, nic);
    }
  }
  return nullptr;
}

std::string HostsInUse(Server* server) {
  constexpr size_t kNamed = 8;
  std::string list;
  size_t count = 0;
  const auto& hosts = server->fabric()->topology().hosts;
  for (uint32_t index = 0; index < hosts.size(); ++index) {
    if (!server->HostInUse(index) || ++count > kNamed) continue;
    list += (list.empty() ? "" : ", ") + hosts[index].name;
  }
  if (count > kNamed) list += " and " + std::to_string(count - kNamed) + " more";
  return list.empty() ? "no program uses the fabric now" : "programs use " + list;
}

}  // namespace

std::string ExecuteControl(Server* server, const std::string& command) {
  std::istringstream words(command);
  std::string verb, host, device, state;
  words >> verb;
  if (verb == "status") {
    server->RefreshSysfs();
    return StatusText(server);
  }
  if (verb == "time") {
    // Both of the same moment: what lies between two answers is exact.
    return "model_ns=" + std::to_string(server->fabric()->Now() / kPicosPerNs) +
           " wall_ns=" + std::to_string(server->wall_ns()) +
           " dilation=" + std::to_string(server->dilation()) + "\n";
  }
  words >> host >> device;
  Nic* nic = FindNic(server, host, device);
  if ((verb == "port" || verb == "kill") && nic == nullptr) {
    return "error: no device \"" + device + "\" on a host \"" + host + "\"; " + HostsInUse(server) + "\n";
  }
  if (verb == "port") {
    std::string text;
    words >> text >> state;
    uint32_t port = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || port < 1 ||
        port > nic->port_count()) {
      const uint32_t ports = nic->port_count();
      return "error: no port \"" + text + "\" on device \"" + device + "\" of host \"" + host +
             (ports == 1 ? "\"; its only port is 1\n"
                         : "\"; its ports are 1 to " + std::to_string(ports) + "\n");
    }
    if (state != "up" && state != "down") {
      return "error: state \"" + state + "\" of a port; use port HOST DEVICE PORT up|down\n";
    }
    const int error = nic->SetPortUp(port, state == "up");
    server->RefreshSysfs();
    if (error == 0) return "ok\n";
    return "error: port " + text + " of device \"" + device + "\" cannot go " + state + ": " +
           strerror(error) + "\n";
  }
  if (verb == "kill") {
    nic->Die();
    server->RefreshSysfs();
    return "ok\n";
  }
  return "error: unknown command \"" + command +
         "\"; known: status, time, port HOST DEVICE PORT up|down, kill HOST DEVICE\n";
}

int SendControl(const std::string& instance, const std::string& command) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = FabricAddress(instance, &address);
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    fprintf(stderr, "sluice-fabric: no fabric process runs as SLUICE_FABRIC=\"%s\" (%s)\n", instance.c_str(),
            strerror(errno));
    return 1;
  }
  if (const Status status = CheckOwner(fd.get(), geteuid(), instance); !status.ok()) {
    fprintf(stderr, "sluice-fabric: %s\n", status.message().c_str());
    return 1;
  }
  TextMessage message{};
  message.type = SocketMessage::kControl;
  strncpy(message.text, command.c_str(), sizeof(message.text) - 1);
  if (!SendMessage(fd.get(), &message, sizeof(message), {})) return 1;
  std::string answer(kMaxAnswerBytes + 4096, '\0');
  const ssize_t size = ReceiveMessage(fd.get(), answer.data(), answer.size(), nullptr);
  if (size <= 0) return 1;
  answer.resize(static_cast<size_t>(size));
  fputs(answer.c_str(), stdout);
  return answer.starts_with("error") ? 1 : 0;
}

}  // namespace sluice::soft
