"""The exceptions. The native part raises them too."""


class Error(Exception):
    """Every error of Blockyard."""


class WrongPassphraseError(Error, ValueError):
    """Another passphrase or key file may open the volume."""


class VolumeError(Error, ValueError):
    """No volume is there, its header is damaged, or the arguments do not fit it."""


class ExperimentError(Error, ValueError):
    """An experiment of the lab is invalid, or cannot run."""


class DeviceError(Error, OSError):
    """A file, a device, a server or a socket failed. `errno` is the number of the system."""


class DeviceNotFoundError(DeviceError, FileNotFoundError):
    """The file or device is not there."""


class DeviceAccessError(DeviceError, PermissionError):
    """The system refuses the file or device."""


class BusyError(DeviceError):
    """Another program or the kernel uses the file or device."""
