//! The certificate that the listener shows; it can be replaced while connections are open.

use std::{fmt::Display, fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    InconsistentKeys, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{
        ClientHello, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier,
        danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;

use super::listener::ListenerRole;
use crate::config::{AuthMethod, Authentication, Tls};

/// The certificate that the listener shows, and those that clients may show.
#[derive(Debug)]
pub(crate) struct Certificates {
    current: Arc<CurrentCertificate>,
    configs: ArcSwap<ListenerConfigs>,
}

/// How each listener speaks TLS.
#[derive(Debug)]
struct ListenerConfigs {
    /// The certificates of clients that the listeners take.
    client_cas: Option<ClientCas>,
    clients: Arc<ServerConfig>,
    /// No certificate is needed here, whatever clients need.
    admin: Arc<ServerConfig>,
}

/// Who has to have issued the certificate of a client.
#[derive(Clone, Debug)]
struct ClientCas {
    /// What the file has, by which a change is seen.
    certificates: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    /// Whether a client must have one.
    is_required: bool,
}

/// A certificate with its key, read and found to fit.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    shown: Arc<CertifiedKey>,
    client_cas: Option<ClientCas>,
}

/// The TLS files cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("tls: {file}: {reason}")]
pub struct InvalidTls {
    /// Which file.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

impl InvalidTls {
    fn new(path: &Path, reason: &dyn Display) -> Self {
        Self {
            file: path.display().to_string(),
            reason: reason.to_string(),
        }
    }
}

#[derive(Debug)]
struct CurrentCertificate(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be used, or they do not fit each other.
    pub(crate) fn read(tls: &Tls, auth: Authentication) -> Result<Self, InvalidTls> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&tls.cert)
            .and_then(Iterator::collect)
            .map_err(|error| InvalidTls::new(&tls.cert, &pem_error_reason(&error)))?;
        if chain.is_empty() {
            return Err(InvalidTls::new(&tls.cert, &missing_reason("certificate")));
        }
        check_key_permissions(&tls.key)?;
        let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| {
            let why = if !matches!(error, pem::Error::NoItemsFound) {
                pem_error_reason(&error)
            } else if is_encrypted(&tls.key) {
                "the private key is encrypted, which is not supported; decrypt it and restrict the \
                 file to its owner"
                    .to_owned()
            } else {
                missing_reason("private key")
            };
            InvalidTls::new(&tls.key, &why)
        })?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let certified = certified.map_err(|error| {
            let mismatch = rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch);
            if error != mismatch {
                return InvalidTls::new(&tls.cert, &error);
            }
            let cert = tls.cert.display();
            let why = format!("it does not match the certificate in {cert}");
            InvalidTls::new(&tls.key, &why)
        })?;
        let client_cas = tls
            .client_ca
            .as_deref()
            .map(|file| ClientCas::read(file, auth));
        Ok(Self {
            shown: Arc::new(certified),
            client_cas: client_cas.transpose()?,
        })
    }
}

impl ClientCas {
    fn read(file: &Path, auth: Authentication) -> Result<Self, InvalidTls> {
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect)
            .map_err(|error| InvalidTls::new(file, &pem_error_reason(&error)))?;
        if certificates.is_empty() {
            return Err(InvalidTls::new(file, &missing_reason("certificate")));
        }
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            let added = roots.add(certificate.clone());
            added.map_err(|error| InvalidTls::new(file, &error))?;
        }
        Ok(Self {
            certificates,
            roots: Arc::new(roots),
            is_required: auth == AuthMethod::Mtls.into(),
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.certificates == other.certificates && self.is_required == other.is_required
    }

    fn verifier(
        &self,
        is_required: bool,
    ) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        let provider = ring::default_provider().into();
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider);
        if is_required {
            builder.build()
        } else {
            builder.allow_unauthenticated().build()
        }
    }
}

/// Refuses a private key that is not its owner's alone. Its group may read it: volumes of containers, and
/// systems with a group for such keys, have it so.
fn check_key_permissions(key: &Path) -> Result<(), InvalidTls> {
    let Ok(known) = fs::metadata(key) else {
        // Whoever opens it says why.
        return Ok(());
    };
    let mode = known.permissions().mode() & 0o777;
    if mode & 0o027 == 0 {
        return Ok(());
    }
    let why = format!(
        "the private key is accessible by other users (mode {mode:04o}): run `chmod \
        600`"
    );
    Err(InvalidTls::new(key, &why))
}

/// What is said of a file that cannot be read as PEM.
fn pem_error_reason(error: &pem::Error) -> String {
    let line = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::MissingSectionEnd { end_marker } => format!(
            "truncated PEM: a section does not end with `-----END {}-----`",
            line(end_marker)
        ),
        pem::Error::IllegalSectionStart { .. } => {
            "invalid PEM: a line starts with `-----BEGIN` and does not end with `-----`".to_owned()
        }
        pem::Error::Base64Decode(_)
        | pem::Error::NoItemsFound
        | pem::Error::SectionTooLarge
        | _ => error.to_string(),
    }
}

fn is_encrypted(key: &Path) -> bool {
    let text = fs::read_to_string(key).unwrap_or_default();
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || text.contains("Proc-Type: 4,ENCRYPTED")
}

/// What is said of a file in which there is no `what`.
fn missing_reason(what: &str) -> String {
    let label = what.to_ascii_uppercase();
    format!("the file contains no PEM {what} (`-----BEGIN {label}-----`)")
}

impl Certificates {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// As [`Certificate::read`].
    pub(super) fn open(tls: &Tls, auth: Authentication) -> Result<Self, InvalidTls> {
        let first = Certificate::read(tls, auth)?;
        let current = Arc::new(CurrentCertificate(ArcSwap::new(first.shown)));
        let configs = ListenerConfigs::new(&current, first.client_cas);
        let configs = configs.map_err(|reason| InvalidTls::new(&tls.cert, &reason))?;
        Ok(Self {
            current,
            configs: ArcSwap::from_pointee(configs),
        })
    }

    /// Shows `certificate` to every connection from now on; whether it is another one.
    pub(crate) fn replace(&self, certificate: Certificate) -> bool {
        let Certificate { shown, client_cas } = certificate;
        let is_another = self.current.0.load().cert != shown.cert;
        self.current.0.store(shown);
        let has_changed = match (&self.configs.load().client_cas, &client_cas) {
            (None, None) => false,
            (Some(old), Some(new)) => !old.is_same(new),
            (None, Some(_)) | (Some(_), None) => true,
        };
        if has_changed {
            match ListenerConfigs::new(&self.current, client_cas) {
                Ok(configs) => self.configs.store(Arc::new(configs)),
                Err(reason) => tracing::error!("the CAs of clients are as before: {reason}"),
            }
        }
        is_another || has_changed
    }

    pub(super) fn acceptor(&self, role: ListenerRole) -> TlsAcceptor {
        let configs = self.configs.load();
        TlsAcceptor::from(Arc::clone(match role {
            ListenerRole::Admin => &configs.admin,
            ListenerRole::All | ListenerRole::Clients => &configs.clients,
        }))
    }
}

impl ListenerConfigs {
    fn new(shown: &Arc<CurrentCertificate>, client_cas: Option<ClientCas>) -> Result<Self, String> {
        let config = |is_required: bool| {
            let verifier = client_cas.as_ref().map(|cas| cas.verifier(is_required));
            let verifier = verifier.transpose().map_err(|error| error.to_string())?;
            server_config(shown, verifier).map_err(|error| error.to_string())
        };
        let is_required = client_cas.as_ref().is_some_and(|cas| cas.is_required);
        Ok(Self {
            clients: config(is_required)?,
            admin: config(false)?,
            client_cas,
        })
    }
}

fn server_config(
    shown: &Arc<CurrentCertificate>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let resolver = Arc::clone(shown) as Arc<dyn ResolvesServerCert>;
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
