package main

import ddlutil "github.com/pingcap/tidb/pkg/ddl/util"

// The embedded storage removes the rows of a dropped table at once, so that nothing can bring them back.
func init() { ddlutil.EmulatorGCDisable() }
