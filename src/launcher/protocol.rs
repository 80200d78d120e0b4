//! Messages between a gateway, its launchers, and the processes that become programs: a length, then
//! JSON; a descriptor may come with it.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Serialize, de::DeserializeOwned};

/// Bytes of the length of a message.
const LENGTH_BYTES: usize = size_of::<u32>();
/// Bytes of a message; nothing that a system could start is longer.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Sends `message`, and `descriptor` with it.
///
/// # Errors
/// When the other side is gone.
pub fn send(
    socket: &UnixStream,
    message: &(impl Serialize + ?Sized),
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let head = length.to_be_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    // So few bytes are sent as a whole.
    retry_on_intr(|| {
        sendmsg(
            socket,
            &[IoSlice::new(&head)],
            &mut ancillary,
            SendFlags::empty(),
        )
    })?;
    (&mut &*socket).write_all(&body)
}

/// Receives a message, and the descriptor that came with it.
///
/// # Errors
/// When the other side is gone, or sent something else.
pub fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<(T, Option<OwnedFd>)> {
    let mut head = [0; LENGTH_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // SIGCHLD of another child interrupts it: a socket with a timeout is not restarted (signal(7)).
    let got = retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut head)],
            &mut ancillary,
            RecvFlags::empty(),
        )
    })?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            descriptor = descriptors.next();
        }
    }
    if let Some(descriptor) = &descriptor {
        rustix::io::fcntl_setfd(descriptor.as_fd(), rustix::io::FdFlags::CLOEXEC)?;
    }
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut stream = socket;
    stream.read_exact(&mut head[got.bytes..])?;
    let length = u32::from_be_bytes(head) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((serde_json::from_slice(&body)?, descriptor))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use nix::sys::{
        pthread::{pthread_kill, pthread_self},
        signal::Signal,
    };
    use tokio::signal::unix::{SignalKind, signal};

    use super::*;

    /// A signal for another purpose does not end the wait for a message.
    #[tokio::test]
    async fn a_signal_does_not_interrupt() {
        let _handled = signal(SignalKind::window_change()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let (tell, receiver) = mpsc::channel();
        let waiting = thread::spawn(move || {
            tell.send(pthread_self()).unwrap();
            receive::<String>(&theirs).map(|(message, _)| message)
        });
        let thread = receiver.recv().unwrap();
        for _ in 0..20 {
            pthread_kill(thread, Signal::SIGWINCH).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(!waiting.is_finished());
        }
        send(&ours, "arrived", None).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), "arrived");
    }
}
