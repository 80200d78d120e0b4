//! A server on stdin and stdout whose words come from elsewhere: it joins both to a TCP port on
//! this machine, where a test is the other end.
//!
//! Run as `scripted_stdio PORT`. It ends when the other end closes the connection.

use std::{
    io::{self, Write},
    net::{Ipv4Addr, Shutdown, TcpStream},
    thread,
};

fn main() -> io::Result<()> {
    let port = std::env::args()
        .nth(1)
        .and_then(|port| port.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the port is missing"))?;
    let mut from_test = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    from_test.set_nodelay(true)?;
    let mut to_test = from_test.try_clone()?;
    thread::spawn(move || {
        // However the input ends, the other end learns that it did.
        drop(io::copy(&mut io::stdin().lock(), &mut to_test));
        drop(to_test.shutdown(Shutdown::Write));
    });
    let mut out = io::stdout().lock();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = io::Read::read(&mut from_test, &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..count])?;
        out.flush()?;
    }
}
