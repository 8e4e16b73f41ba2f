package main

import (
	"context"
	"errors"
	"flag"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"deltabus.dev/cluster/internal/tool"
)

// startEtcd starts etcd in this process and returns when it answers.
func startEtcd(h home, info clusterInfo) (*embed.Etcd, error) {
	client, err := url.Parse(info.Etcd)
	if err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Dir = h.path("etcd")
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = []url.URL{*client}
	// A cluster of one has no peers: it opens no peer port, and the advertised address is only a name.
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true // the page cache survives a kill of the process
	config.LogLevel = "fatal"   // at level error it reports the closing of its listeners at a stop
	config.QuotaBackendBytes = 4 << 30
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, err
	case <-time.After(30 * time.Second):
		return nil, errors.New("etcd was not ready within 30s")
	}
}

// runCompact drops all of etcd's history before a revision, by default the current one, and prints that revision.
func runCompact(args []string) error {
	flags := flag.NewFlagSet("compact", flag.ExitOnError)
	dataDir := flags.String("data-dir", "", "the cluster's data directory")
	revision := flags.Int64("revision", 0, "the first revision that stays; 0 means the current one")
	flags.Parse(args)
	info, err := home(*dataDir).load()
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{info.Etcd}, DialTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if *revision == 0 {
		response, err := client.Get(ctx, "any-key-tells-the-revision")
		if err != nil {
			return err
		}
		*revision = response.Header.Revision
	}
	if _, err := client.Compact(ctx, *revision, clientv3.WithCompactPhysical()); err != nil {
		return err
	}
	return tool.PrintJSON(map[string]int64{"revision": *revision})
}
