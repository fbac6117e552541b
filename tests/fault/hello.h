// The HELLO with which a peer that has the secret of a handle opens a set-up link.
#pragma once

#include "plugin/transport/frames.h"
#include "plugin/transport/wire.h"

namespace sluice::fault {

inline HelloFrame HelloFor(const ListenHandle& target) {
  HelloFrame hello;
  hello.min_version = hello.max_version = target.version;
  hello.sender_uid = 1;
  hello.receiver_uid = target.engine_uid;
  hello.listen_id = target.listen_id;
  hello.secret = target.secret;
  hello.library = "stranger";
  hello.host = "stranger:1";
  hello.ports.emplace_back();
  return hello;
}

}  // namespace sluice::fault
