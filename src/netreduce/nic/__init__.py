"""The embedded RoCEv2 NIC: Reliable Connection transport behind a verbs API (`netreduce.nic.verbs`)."""

from netreduce.nic.nic import Nic
from netreduce.nic.tables import NicLimits

__all__ = ["Nic", "NicLimits"]
