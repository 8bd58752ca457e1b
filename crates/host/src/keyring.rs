//! Keys of the kernel's keyrings: `request_key(2)` and `keyctl(2)`.

use std::ffi::CString;
use std::io;

use blockyard_crypt::secret::SecretBytes;

/// `KEYCTL_READ` of `linux/keyctl.h`.
const KEYCTL_READ: libc::c_long = 11;
/// Longest payload of a key of type `user`; the kernel's limit.
const PAYLOAD_LEN_MAX_BYTES: usize = 32_767;

/// The payload of the key of type `user` with this description, from the keyrings of the thread,
/// the process, the session and the user.
///
/// # Errors
/// There is no such key, it may not be read, or the kernel has no keyrings.
pub fn user_key(description: &str) -> io::Result<SecretBytes> {
    let description = CString::new(description).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: both texts end with a NUL and outlive the call; without call-out information the
    // kernel starts no program.
    let key = unsafe {
        libc::syscall(
            libc::SYS_request_key,
            c"user".as_ptr(),
            description.as_ptr(),
            std::ptr::null::<libc::c_char>(),
            0,
        )
    };
    if key < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut payload = SecretBytes::zeroed(PAYLOAD_LEN_MAX_BYTES);
    // SAFETY: the kernel writes at most the given length into the buffer, and returns the length
    // of the payload.
    let len = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_READ,
            key,
            payload.as_mut_slice().as_mut_ptr(),
            payload.len(),
        )
    };
    match usize::try_from(len) {
        Ok(len) if len <= payload.len() => Ok(SecretBytes::copy_of(&payload.as_slice()[..len])),
        Ok(_) => Err(io::ErrorKind::FileTooLarge.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_the_process_is_found_by_its_description() {
        /// `KEY_SPEC_PROCESS_KEYRING` of `linux/keyctl.h`.
        const PROCESS: libc::c_long = -2;
        // SAFETY: the texts end with NULs, and the payload has three bytes.
        let key = unsafe {
            libc::syscall(
                libc::SYS_add_key,
                c"user".as_ptr(),
                c"blockyard-test:key".as_ptr(),
                b"a\0b".as_ptr(),
                3,
                PROCESS,
            )
        };
        let error = io::Error::last_os_error();
        if key < 0 && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
            println!("this system or container has no keyrings: {error}");
            return;
        }
        assert!(key > 0, "{error}");
        assert_eq!(user_key("blockyard-test:key").unwrap().as_slice(), b"a\0b");
    }

    #[test]
    fn key_that_nobody_has_is_an_error() {
        assert!(user_key("blockyard-test:no-such-key").is_err());
        assert!(user_key("a\0b").is_err());
    }
}
