"""The states of a queue pair: which modification leads where, and what it must and may set.

One table (IBA vol. 1, section 10.3.1 and table 96; `ibv_modify_qp(3)`): what is not in it is an error.
"""

from __future__ import annotations

from netreduce.errors import VerbsError
from netreduce.nic.enums import QpAttrMask as Attr
from netreduce.nic.enums import QpState as State

_NOTHING = Attr(0)
_RUNNING = Attr.IBV_QP_CUR_STATE | Attr.IBV_QP_ACCESS_FLAGS | Attr.IBV_QP_MIN_RNR_TIMER
_INIT = Attr.IBV_QP_PKEY_INDEX | Attr.IBV_QP_PORT | Attr.IBV_QP_ACCESS_FLAGS
_RTR = (
    Attr.IBV_QP_AV
    | Attr.IBV_QP_PATH_MTU
    | Attr.IBV_QP_DEST_QPN
    | Attr.IBV_QP_RQ_PSN
    | Attr.IBV_QP_MAX_DEST_RD_ATOMIC
    | Attr.IBV_QP_MIN_RNR_TIMER
)
_RTS = (
    Attr.IBV_QP_TIMEOUT
    | Attr.IBV_QP_RETRY_CNT
    | Attr.IBV_QP_RNR_RETRY
    | Attr.IBV_QP_SQ_PSN
    | Attr.IBV_QP_MAX_QP_RD_ATOMIC
)

TRANSITIONS: dict[tuple[State, State], tuple[Attr, Attr]] = {
    (State.IBV_QPS_RESET, State.IBV_QPS_INIT): (_INIT, _NOTHING),
    (State.IBV_QPS_INIT, State.IBV_QPS_INIT): (_NOTHING, _INIT),
    (State.IBV_QPS_INIT, State.IBV_QPS_RTR): (_RTR, Attr.IBV_QP_ACCESS_FLAGS | Attr.IBV_QP_PKEY_INDEX),
    (State.IBV_QPS_RTR, State.IBV_QPS_RTS): (_RTS, _RUNNING),
    (State.IBV_QPS_RTS, State.IBV_QPS_RTS): (_NOTHING, _RUNNING),
    (State.IBV_QPS_RTS, State.IBV_QPS_SQD): (_NOTHING, _NOTHING),
    (State.IBV_QPS_SQD, State.IBV_QPS_SQD): (
        _NOTHING,
        _RUNNING | Attr.IBV_QP_TIMEOUT | Attr.IBV_QP_RETRY_CNT | Attr.IBV_QP_RNR_RETRY,
    ),
    (State.IBV_QPS_SQD, State.IBV_QPS_RTS): (_NOTHING, _RUNNING),
}
"""From and to: the attributes that are required, and those that are optional."""
for _state in State:
    if _state is not State.IBV_QPS_SQE:  # which RC queue pairs never are in
        TRANSITIONS[_state, State.IBV_QPS_RESET] = (_NOTHING, _NOTHING)
        TRANSITIONS[_state, State.IBV_QPS_ERR] = (_NOTHING, _NOTHING)

LIMITS: dict[Attr, tuple[str, int, int]] = {
    Attr.IBV_QP_PATH_MTU: ("path_mtu", 1, 5),
    Attr.IBV_QP_TIMEOUT: ("timeout", 0, 31),
    Attr.IBV_QP_RETRY_CNT: ("retry_cnt", 0, 7),
    Attr.IBV_QP_RNR_RETRY: ("rnr_retry", 0, 7),
    Attr.IBV_QP_RQ_PSN: ("rq_psn", 0, (1 << 24) - 1),
    Attr.IBV_QP_SQ_PSN: ("sq_psn", 0, (1 << 24) - 1),
    Attr.IBV_QP_DEST_QPN: ("dest_qp_num", 0, (1 << 24) - 1),
    Attr.IBV_QP_MIN_RNR_TIMER: ("min_rnr_timer", 0, 31),
    Attr.IBV_QP_PORT: ("port_num", 1, 1),
    Attr.IBV_QP_PKEY_INDEX: ("pkey_index", 0, 0),
    Attr.IBV_QP_MAX_QP_RD_ATOMIC: ("max_rd_atomic", 0, 255),
    Attr.IBV_QP_MAX_DEST_RD_ATOMIC: ("max_dest_rd_atomic", 0, 255),
}
"""The attribute's name in `QPAttr`, least and greatest value."""


def check_transition(current: State, new: State, mask: Attr) -> None:
    """Raise `VerbsError` unless a modification by `mask` may lead from `current` to `new`."""
    if (current, new) not in TRANSITIONS:
        allowed = ", ".join(to.name for origin, to in TRANSITIONS if origin is current)
        raise VerbsError(f"queue pair cannot go from {current.name} to {new.name}; from there it can go to {allowed}")
    required, optional = TRANSITIONS[current, new]
    mask &= ~Attr.IBV_QP_STATE
    for wrong, what in ((required & ~mask, "needs"), (mask & ~(required | optional), "cannot set")):
        if wrong:
            names = ", ".join(bit.name or "" for bit in Attr if bit & wrong)
            raise VerbsError(f"going from {current.name} to {new.name} {what} {names}")
