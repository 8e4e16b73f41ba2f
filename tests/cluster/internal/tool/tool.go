// Package tool has the parts shared by the binaries of this module: sub-commands, output, and certificates.
package tool

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const validity = 10 * 365 * 24 * time.Hour

// Main runs the sub-command in the first argument, with the remaining arguments.
func Main(binary string, commands map[string]func(args []string) error) {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := strings.Join(slices.Sorted(maps.Keys(commands)), ", ")
		fmt.Fprintf(os.Stderr, "usage: %s COMMAND ...\ncommands: %s\n", binary, names)
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", binary, os.Args[1], err)
		os.Exit(1)
	}
}

// PrintJSON writes value as one line to stdout, which carries nothing else.
func PrintJSON(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}

// WriteCertificates writes ca.crt, and for each name a certificate of it with its key: NAME.crt and NAME.key.
// It uses a separate CA because rustls rejects a CA certificate as a server certificate.
func WriteCertificates(dir string, names ...string) error {
	notBefore := time.Now().Add(-time.Hour)
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test CA"},
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeCertificate(dir, "ca", authority, authority, authorityKey, authorityKey); err != nil {
		return err
	}
	for i, name := range names {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		certificate := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    authority.NotBefore,
			NotAfter:     authority.NotAfter,
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			DNSNames:     []string{"localhost", "kubernetes.default.svc"},
			IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		}
		if err := writeCertificate(dir, name, certificate, authority, key, authorityKey); err != nil {
			return err
		}
	}
	return nil
}

func writeCertificate(dir, name string, certificate, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	signed, err := x509.CreateCertificate(rand.Reader, certificate, parent, &key.PublicKey, parentKey)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := WritePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", signed); err != nil {
		return err
	}
	return WritePEM(filepath.Join(dir, name+".key"), "PRIVATE KEY", private)
}

// WritePEM writes a file that only its owner can read.
func WritePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
