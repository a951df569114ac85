//! Counts the requests of clients. INFO counts calls inside scripts, too; MONITOR shows which are
//! requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, JoinHandle};

use support::Server;

pub struct Monitor {
    connection: TcpStream,
    counting: JoinHandle<u64>,
}

impl Monitor {
    /// Starts counting. MONITOR slows the server down.
    pub fn start(server: &Server) -> Self {
        let mut connection = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        connection.write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(connection.try_clone().unwrap());
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).unwrap();
        assert_eq!(line, b"+OK\r\n");
        let counting = thread::spawn(move || {
            let mut requests = 0;
            loop {
                line.clear();
                match lines.read_until(b'\n', &mut line) {
                    Ok(1..) => requests += u64::from(is_request(&line)),
                    _ => return requests,
                }
            }
        });
        Self {
            connection,
            counting,
        }
    }

    pub fn stop(self) -> u64 {
        let _ = self.connection.shutdown(Shutdown::Both);
        self.counting
            .join()
            .expect("the counting thread does not panic")
    }
}

/// Reads lines such as `+1700000000.000000 [0 127.0.0.1:50000] "GET" "a"`; the address is `lua` if
/// a script made the call. MONITOR escapes line ends in arguments, so each line is one command.
fn is_request(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    words.nth(2).is_some_and(|from| from != b"lua]")
}
