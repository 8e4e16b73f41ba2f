package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// home is the data directory of one cluster. It holds all data that survive a restart: etcd's data, keys, tokens, ports.
type home string

func (h home) path(name string) string { return filepath.Join(string(h), name) }

// clusterInfo has the addresses of the cluster. It is saved as cluster.json, so that a restart keeps its ports and the
// other sub-commands find the server by --data-dir alone.
type clusterInfo struct {
	URL               string `json:"url"`
	Kubeconfig        string `json:"kubeconfig"`
	LimitedKubeconfig string `json:"limited_kubeconfig"`
	Token             string `json:"token"`
	Etcd              string `json:"etcd"`

	SecurePort int `json:"secure_port"`
	EtcdPort   int `json:"etcd_port"`
}

func (h home) load() (clusterInfo, error) {
	var info clusterInfo
	text, err := os.ReadFile(h.path("cluster.json"))
	if err != nil {
		return info, err
	}
	return info, json.Unmarshal(text, &info)
}

func (h home) save(info clusterInfo) error {
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return os.WriteFile(h.path("cluster.json"), text, 0o600)
}

// prepare creates everything that a server needs before it starts, or reuses the files of an earlier run.
// Port 0 means the port of the earlier run, or else a free one.
func (h home) prepare(securePort, etcdPort int) (clusterInfo, error) {
	var none clusterInfo
	if err := os.MkdirAll(string(h), 0o700); err != nil {
		return none, err
	}
	if err := h.lock(); err != nil {
		return none, err
	}
	info, err := h.load()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return none, fmt.Errorf("failed to read cluster.json: %w", err)
	}
	for _, port := range []struct {
		asked int
		kept  *int
	}{{securePort, &info.SecurePort}, {etcdPort, &info.EtcdPort}} {
		if port.asked != 0 {
			*port.kept = port.asked
		}
		if *port.kept == 0 {
			if *port.kept, err = freePort(); err != nil {
				return none, err
			}
		}
	}
	if err := ensureKeys(h); err != nil {
		return none, err
	}
	tokens, err := ensureTokens(h)
	if err != nil {
		return none, err
	}
	info.URL = fmt.Sprintf("https://127.0.0.1:%d", info.SecurePort)
	info.Etcd = fmt.Sprintf("http://127.0.0.1:%d", info.EtcdPort)
	info.Token = tokens.admin
	info.Kubeconfig = h.path("admin.kubeconfig")
	info.LimitedKubeconfig = h.path("limited.kubeconfig")
	if err := writeKubeconfig(h, info.Kubeconfig, info.URL, adminUser, tokens.admin); err != nil {
		return none, err
	}
	if err := writeKubeconfig(h, info.LimitedKubeconfig, info.URL, limitedUser, tokens.limited); err != nil {
		return none, err
	}
	return info, h.save(info)
}

// lock waits until no other server uses this directory, and locks it for this process. A restart may begin while
// the previous server is still stopping.
func (h home) lock() (err error) {
	if lockFile, err = os.OpenFile(h.path("lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	return syscall.Flock(int(lockFile.Fd()), syscall.LOCK_EX)
}

var lockFile *os.File // global: the garbage collector closes unreferenced files

// freePort picks a port below the range of outgoing connections, so that no client takes it during a restart.
func freePort() (int, error) {
	for range 200 {
		port := 12000 + rand.IntN(16000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("no free port on 127.0.0.1 between 12000 and 28000")
}
